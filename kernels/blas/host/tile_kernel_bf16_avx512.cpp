// This file is compiled with -march=x86-64-v4 -mavx512bf16, and therefore includes nothing whose functions others may
// share.
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {
namespace {

constexpr int rows = 8, lanes = 16;

bool has_dot_products() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

template <int vectors>
void multiply(std::int64_t k, const LeftPanel& a_panel, const std::byte* b, bool add, float* sums) {
  constexpr int cols = vectors * lanes;
  const std::byte* a = a_panel.data;
  __m512 sum[rows][vectors];
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j)
      sum[i][j] = add ? _mm512_load_ps(sums + i * cols + j * lanes) : _mm512_setzero_ps();
  for (std::int64_t p = 0; p < k; p += 2, a += 4 * rows, b += 4 * cols) {
    __m512bh right[vectors];
    for (int j = 0; j < vectors; ++j) right[j] = (__m512bh)_mm512_load_si512(b + 64 * j);
    for (int i = 0; i < rows; ++i) {
      int pair = 0;
      std::memcpy(&pair, a + 4 * i, sizeof pair);
      const auto left = (__m512bh)_mm512_broadcastd_epi32(_mm_cvtsi32_si128(pair));  // set1 ends clang 16
      for (int j = 0; j < vectors; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], left, right[j]);
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < vectors; ++j) _mm512_store_ps(sums + i * cols + j * lanes, sum[i][j]);
}

}  // namespace

TileKernel bf16_kernel_avx512bf16() {
  if (!has_dot_products()) return {};
  TileKernel kernel{rows, 3 * lanes, 2, Packing::pairs, Packing::pairs, multiply<3>};
  kernel.narrow[0] = multiply<1>;
  kernel.narrow[1] = multiply<2>;
  return kernel;
}

}  // namespace sestina::host

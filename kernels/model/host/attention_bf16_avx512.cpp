// This file is compiled for AVX-512 with bf16, and therefore includes nothing whose functions others may share.
#include "kernels/model/host/attention_backward_avx512.hpp"
#include "kernels/model/host/attention_forward_avx512.hpp"

namespace sestina::host {
namespace {

using namespace attention_bf16;

// Products of panels by dot products of pairs: eight rows of 32 sums stay in registers.
struct DotProducts {
  // Computes C (m, n) = A (m, k) B (k, n), or += with add; m, n and k are multiples of 32. A has rows lda apart; B has
  // strips of 16 columns in pairs, `strip` elements apart; C has rows ldc apart.
  static void multiply(int m, int n, int k, const Bits* a, int lda, const Bits* b, int strip, float* c, int ldc,
                       bool add) {
    for (int j = 0; j < n; j += group)
      for (int i = 0; i < m; i += rows)
        multiply_rows(k, a + i * lda, lda, b + j / lanes * strip, strip, c + i * ldc + j, ldc, add);
  }

 private:
  static constexpr int rows = 8;

  static void multiply_rows(int k, const Bits* a, int lda, const Bits* b, int strip, float* c, int ldc, bool add) {
    __m512 sum[rows][2];
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 2; ++j) sum[i][j] = add ? _mm512_load_ps(c + i * ldc + j * lanes) : _mm512_setzero_ps();
    for (int p = 0; p < k; p += 2) {
      const auto left = (__m512bh)_mm512_load_si512(b + p * lanes),
                 right = (__m512bh)_mm512_load_si512(b + strip + p * lanes);
      for (int i = 0; i < rows; ++i) {
        int pair;
        __builtin_memcpy(&pair, a + i * lda + p, sizeof pair);
        const auto both = (__m512bh)_mm512_set1_epi32(pair);
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, left);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, right);
      }
    }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 2; ++j) _mm512_store_ps(c + i * ldc + j * lanes, sum[i][j]);
  }
};

constexpr AttentionBf16 passes{forward_memory, backward_memory, pack_forward, attend<DotProducts>,
                               differentiate<DotProducts>};

}  // namespace

const AttentionBf16* attention_bf16_dot_products() { return &passes; }

}  // namespace sestina::host

// This file is compiled for AVX-512 with bf16, and therefore includes nothing whose functions others may share.
#include "kernels/model/host/attention_backward_avx512.hpp"
#include "kernels/model/host/attention_forward_avx512.hpp"

namespace sestina::host {
namespace {

using namespace attention_bf16;

// Products of panels by dot products of pairs: eight rows of 32 sums stay in registers. The same units of the processor
// work on vectors, so that nothing is won by pieces, and a job is done at its end.
struct DotProducts {
  static void begin(const Job&) {}
  static void piece(const Job&, int) {}
  static void end(const Job& job) {
    for (int i = 0; i < group; i += rows) multiply_rows(job, job.a + i * job.lda, job.c + i * job.ldc);
  }

 private:
  static constexpr int rows = 8;

  static void multiply_rows(const Job& job, const Bits* a, float* c) {
    __m512 sum[rows][2];
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 2; ++j)
        sum[i][j] = job.add ? _mm512_load_ps(c + i * job.ldc + j * lanes) : _mm512_setzero_ps();
    for (int p = 0; p < job.k; p += 2) {
      const auto left = (__m512bh)_mm512_load_si512(job.b + p * lanes),
                 right = (__m512bh)_mm512_load_si512(job.b + job.strip + p * lanes);
      for (int i = 0; i < rows; ++i) {
        int pair;
        __builtin_memcpy(&pair, a + i * job.lda + p, sizeof pair);
        const auto both = (__m512bh)_mm512_broadcastd_epi32(_mm_cvtsi32_si128(pair));  // set1 ends clang 16
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], both, left);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], both, right);
      }
    }
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 2; ++j) _mm512_store_ps(c + i * job.ldc + j * lanes, sum[i][j]);
  }
};

constexpr AttentionBf16 passes{forward_memory<DotProducts>, backward_memory, pack_forward, attend<DotProducts>,
                               differentiate<DotProducts>};

}  // namespace

const AttentionBf16* attention_bf16_dot_products() { return &passes; }

}  // namespace sestina::host

// This file is compiled for AMX, and therefore includes nothing whose functions others may share.
#include "kernels/model/host/attention_backward_avx512.hpp"
#include "kernels/model/host/attention_forward_avx512.hpp"

namespace sestina::host {
namespace {

using namespace attention_bf16;

// Products of panels by tiles of 16 x 16 sums, two by two. One of these lives while its thread uses tiles.
class Tiles {
 public:
  Tiles() {
    const Shapes shapes;
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Computes C (m, n) = A (m, k) B (k, n), or += with add; m, n and k are multiples of 32. A has rows lda apart; B has
  // strips of 16 columns in pairs, `strip` elements apart; C has rows ldc apart.
  static void multiply(int m, int n, int k, const Bits* a, int lda, const Bits* b, int strip, float* c, int ldc,
                       bool add) {
    asm volatile("" ::: "memory");  // g++ does not know that loads of tiles read memory
    for (int i = 0; i < m; i += group)
      for (int j = 0; j < n; j += group)
        multiply_four(k, a + i * lda, lda, b + j / lanes * strip, strip, c + i * ldc + j, ldc, add);
    asm volatile("" ::: "memory");
  }

 private:
  // Palette 1: for each of eight tiles the bytes of a row and the number of rows.
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };

  static void multiply_four(int k, const Bits* a, int lda, const Bits* b, int strip, float* c, int ldc, bool add) {
    const int c_bytes = ldc * 4, a_bytes = lda * 2;
    float* below = c + lanes * ldc;
    if (add) {
      _tile_loadd(0, c, c_bytes);
      _tile_loadd(1, c + lanes, c_bytes);
      _tile_loadd(2, below, c_bytes);
      _tile_loadd(3, below + lanes, c_bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int p = 0; p < k; p += 32) {
      _tile_loadd(4, a + p, a_bytes);
      _tile_loadd(6, b + p * lanes, 64);
      _tile_loadd(7, b + strip + p * lanes, 64);
      _tile_loadd(5, a + lanes * lda + p, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + lanes, c_bytes);
    _tile_stored(2, below, c_bytes);
    _tile_stored(3, below + lanes, c_bytes);
  }
};

constexpr AttentionBf16 passes{forward_memory, backward_memory, pack_forward, attend<Tiles>, differentiate<Tiles>};

}  // namespace

const AttentionBf16* attention_bf16_tiles() { return &passes; }

}  // namespace sestina::host

// This file is compiled for AMX, and therefore includes nothing whose functions others may share.
#include "kernels/blas/host/tile_config_amx.hpp"
#include "kernels/model/host/attention_backward_avx512.hpp"
#include "kernels/model/host/attention_forward_avx512.hpp"

namespace sestina::host {
namespace {

using namespace attention_bf16;

// Products of panels by tiles of 16 x 16 sums, two by two. One of these lives while its thread uses tiles.
class Tiles {
 public:
  Tiles() { _tile_loadconfig(&tile_config); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  static void begin(const Job& job) {
    asm volatile("" ::: "memory");  // g++ does not know that loads of tiles read memory
    const int bytes = job.ldc * 4;
    if (job.add) {
      float* below = job.c + lanes * job.ldc;
      _tile_loadd(0, job.c, bytes);
      _tile_loadd(1, job.c + lanes, bytes);
      _tile_loadd(2, below, bytes);
      _tile_loadd(3, below + lanes, bytes);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  static void piece(const Job& job, int p) {
    asm volatile("" ::: "memory");
    const int bytes = job.lda * 2;
    const Bits *a = job.a + p, *b = job.b + p * lanes;
    _tile_loadd(4, a, bytes);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + job.strip, 64);
    _tile_loadd(5, a + lanes * job.lda, bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  static void end(const Job& job) {
    const int bytes = job.ldc * 4;
    float* below = job.c + lanes * job.ldc;
    _tile_stored(0, job.c, bytes);
    _tile_stored(1, job.c + lanes, bytes);
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + lanes, bytes);
    asm volatile("" ::: "memory");
  }
};

constexpr AttentionBf16 passes{forward_memory<Tiles>, backward_memory, pack_forward, attend<Tiles>,
                               differentiate<Tiles>};

}  // namespace

const AttentionBf16* attention_bf16_tiles() { return &passes; }

}  // namespace sestina::host

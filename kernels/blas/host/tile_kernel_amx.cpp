// This file is compiled with -mamx-tile -mamx-bf16, and therefore includes nothing whose functions others may share.
// Tiles of AMX: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/blas/host/tile_config_amx.hpp"
#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {
namespace {

constexpr int side = 32;           // of the block that four tiles of sums make
constexpr std::int64_t step = 32;  // elements of k in a tile

// Returns whether the processor has tiles of bf16 and the system lets this process use them (Linux asks to be asked).
bool has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 22 & 1) == 0 || (d >> 24 & 1) == 0) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

void begin() { _tile_loadconfig(&tile_config); }
void end() { _tile_release(); }

// Tiles 0 to 3 hold the sums, 4 and 5 rows of A, 6 and 7 columns of B.
void multiply(std::int64_t k, const LeftPanel& left, const std::byte* b, bool add, float* sums) {
  constexpr int sum_stride = 4 * side, b_stride = 4 * side;
  constexpr std::int64_t below = 16 * side;  // floats from a tile of sums to the one below it
  if (add) {
    _tile_loadd(0, sums, sum_stride);
    _tile_loadd(1, sums + 16, sum_stride);
    _tile_loadd(2, sums + below, sum_stride);
    _tile_loadd(3, sums + below + 16, sum_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::byte *a = left.data, *lower = a + left.below;
  for (std::int64_t p = 0; p < k; p += step, a += left.next, lower += left.next, b += 2 * step * side) {
    _tile_loadd(4, a, left.row);
    _tile_loadd(6, b, b_stride);
    _tile_loadd(7, b + 64, b_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower, left.row);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, sum_stride);
  _tile_stored(1, sums + 16, sum_stride);
  _tile_stored(2, sums + below, sum_stride);
  _tile_stored(3, sums + below + 16, sum_stride);
}

}  // namespace

TileKernel bf16_kernel_amx() {
  static const bool available = has_tiles();
  if (!available) return {};
  return {side, side, int{step}, Packing::rows, Packing::pairs, multiply, begin, end};
}

}  // namespace sestina::host

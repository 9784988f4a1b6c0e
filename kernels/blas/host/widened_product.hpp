// Products of bf16 matrices where no library multiplies bf16: both are widened to fp32 while they are packed, panel by
// panel, and multiplied in fp32. Memory of bf16, speed of fp32. Host only; gemm.hpp is the reference.
//
// The blocking is that of Goto & van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008): a panel of B
// stays in the first-level cache, a block of A in the second, and both are packed once for many tiles.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/blas/host/gemm_host.hpp"
#include "kernels/blas/host/widened_tile.hpp"

namespace sestina::host {

// Memory aligned to 64 bytes that grows to the largest need seen.
class PackedPanels {
 public:
  float* at_least(std::int64_t count);

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t count_ = 0;
};

// Keeps the packed blocks (some 5 MB for up to eight threads), so that a product no larger than one seen before
// allocates nothing. Not thread-safe; runs on as many threads as OpenMP gives the caller.
class WidenedProducts {
 public:
  explicit WidenedProducts(VectorLevel max = VectorLevel::avx512) : kernel_(tile_kernel(max)) {}

  // Requires product.types to be bf16 or bf16_to_f32. Every element is summed in the order of k, 256 at a time and
  // these sums in turn, so that its bits depend on nothing but k: neither on threads, nor on the tile that it lies in,
  // nor on the width of vectors (but where the processor has no fused multiply-add).
  void run(const Product& product, const Operands&);

 private:
  TileKernel kernel_;
  PackedPanels a_, b_, sums_;
};

}  // namespace sestina::host

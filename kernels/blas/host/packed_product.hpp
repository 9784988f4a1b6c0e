// Products of the program itself, of fp32 and bf16 matrices: both operands are packed panel by panel and multiplied by
// the kernels of tile_kernel.hpp. bf16 is multiplied as such where the processor can, else it is widened to fp32 while
// it is packed (memory of bf16, speed of fp32). Host only; gemm.hpp is the reference.
//
// The blocking is that of Goto & van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008): a panel of B
// stays in the first-level cache, a block of A in the second, and both are packed once for many tiles.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/blas/host/gemm_host.hpp"
#include "kernels/blas/host/tile_kernel.hpp"

namespace sestina::host {

// Memory aligned to 64 bytes that grows to the largest need seen.
class PackedPanels {
 public:
  std::byte* at_least(std::int64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t bytes_ = 0;
};

// Keeps the packed blocks (at most some 10 MB for up to eight threads), so that a product no larger than one seen
// before allocates nothing. Not thread-safe; runs on as many threads as OpenMP gives the caller.
class PackedProducts {
 public:
  explicit PackedProducts(VectorLevel max = VectorLevel::amx) : wide_(wide_kernel(max)), bf16_(bf16_kernel(max)) {}

  // Whether bf16 is multiplied as such, and not widened.
  bool has_bf16() const { return bf16_.run != nullptr; }

  // Requires product.types not to be f64. Every element is summed in the order of k, so that its bits depend on nothing
  // but its operands and k: neither on threads, nor on the tile that it lies in, nor, in fp32 and widened, on the width
  // of vectors (but where the processor has no fused multiply-add).
  void run(const Product& product, const Operands&);

 private:
  TileKernel wide_, bf16_;
  PackedPanels a_, b_, sums_;
};

}  // namespace sestina::host

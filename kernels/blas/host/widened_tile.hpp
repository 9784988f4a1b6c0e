// One tile of a product in fp32 out of packed panels: the inner loop of widened_product.hpp. It is compiled once for
// each width of vectors: for the processor that the build is for in widened_tile_host.cpp, for wider ones of x86-64 in
// the twins whose names end in _avx2 and _avx512, which run only where the processor has these vectors.
#pragma once
#include <cstdint>

namespace sestina::host {

// Rows of a packed panel of A, which are also those of a tile.
inline constexpr int tile_rows = 8;
// Columns of the widest tile of any kernel.
inline constexpr int max_tile_cols = 48;

// Computes sums (8, cols) = sum over k of a (k, 8) times b (k, cols), added to what sums holds where `add` says so.
// Each element is one chain of fused multiply-adds in the order of k, so that its bits do not depend on the width of
// the vectors. Panels and sums are aligned to 64 bytes.
struct TileKernel {
  int cols;
  void (*run)(std::int64_t k, const float* a, const float* b, bool add, float* sums);
};

// The widest vectors that a kernel may use.
enum class VectorLevel : std::uint8_t { any, avx2, avx512 };
// Returns the fastest kernel that this processor can run, of at most that level. Whichever it is, the bits are the same
// where the build's own processor has fused multiply-adds.
TileKernel tile_kernel(VectorLevel max);
TileKernel tile_kernel_avx2();    // x86-64 alone
TileKernel tile_kernel_avx512();  // x86-64 alone

// Multiplies two panels over k. A vector has Lanes floats, a row of the tile has Vectors of them, and Rows rows stay in
// registers at a time: Rows * Vectors sums, Vectors of b and one of a must fit into the registers (16 with AVX2, 32
// with AVX-512).
template <int Lanes, int Vectors, int Rows>
void multiply_panels(std::int64_t k, const float* a, const float* b, bool add, float* sums) {
  typedef float V __attribute__((vector_size(Lanes * 4)));
  constexpr int cols = Lanes * Vectors;
  for (int row = 0; row < tile_rows; row += Rows) {
    V sum[Rows][Vectors] = {};
    for (std::int64_t p = 0; p < k; ++p) {
      V right[Vectors];
      for (int j = 0; j < Vectors; ++j) right[j] = *reinterpret_cast<const V*>(b + p * cols + j * Lanes);
      for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Vectors; ++j) sum[i][j] += a[p * tile_rows + row + i] * right[j];
    }
    for (int i = 0; i < Rows; ++i)
      for (int j = 0; j < Vectors; ++j) {
        V& out = *reinterpret_cast<V*>(sums + (row + i) * cols + j * Lanes);
        out = add ? out + sum[i][j] : sum[i][j];
      }
  }
}

}  // namespace sestina::host

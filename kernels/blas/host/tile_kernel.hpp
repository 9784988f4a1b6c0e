// One tile of a product out of packed panels: the inner loop of packed_product.hpp. It is compiled once for each
// kind of vectors: for the processor that the build is for in tile_kernel_host.cpp, for others of x86-64 in the twins
// whose names end in _avx2, _avx512 and _amx, which run only where the processor has what they need.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sestina::host {

// How a panel of `lines` rows of A (columns of B) holds their elements p of k.
enum class Packing : std::uint8_t {
  wide,   // float (k, lines)
  pairs,  // bf16 (k / 2, lines, 2)
  rows,   // bf16 (k / 32, lines, 32)
};

// What a kernel reads of A: a packed panel or, where Packing::rows lets it, bf16 rows as they lie in memory.
struct LeftPanel {
  const std::byte* data;
  // Packing::rows: bytes from a row to the next, from 32 elements of k to the next 32, and to the lower 16 rows.
  std::int64_t row = 64, next = 2048, below = 1024;
};

// Computes sums (rows, cols) = sum over k of op_a(A) (rows, k) times op_b(B) (k, cols), added to what sums holds where
// `add` says so. Panels and sums are aligned to 64 bytes; k is a multiple of `step`, to which panels are filled with
// zeros. The bits of an element depend on its lines and on k alone, not on its place in the tile.
struct TileKernel {
  using Run = void (*)(std::int64_t k, const LeftPanel& a, const std::byte* b, bool add, float* sums);
  int rows = 0, cols = 0, step = 1;
  Packing a = Packing::wide, b = Packing::wide;
  Run run = nullptr;
  // Called by each thread before its first tile of a product and after its last; null: nothing to do.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  // Of tiles with one vector of columns, and with two: for the last columns of a matrix. Null: it has none.
  Run narrow[2] = {};
};
// Columns of the widest tile of any kernel.
inline constexpr int max_tile_cols = 48;

// What a kernel may use at most. The values after avx512 multiply bf16 itself.
enum class VectorLevel : std::uint8_t { any, avx2, avx512, avx512_bf16, amx };

// Returns the fastest kernel in fp32 that this processor can run, of at most that level. Whichever it is, the bits are
// the same where the build's own processor has fused multiply-adds: each element is one chain of them in the order of
// k, added to `sums` as a whole.
TileKernel wide_kernel(VectorLevel max);
// Returns the fastest kernel that multiplies bf16 and adds in fp32, of at most that level; without run: there is none.
// AMX tiles and dot products add pairs of products in the order of k, and go on from `sums`; both take subnormal
// numbers for zero.
TileKernel bf16_kernel(VectorLevel max);

// x86-64 alone. Kernels of a processor that lacks what they need have no run.
TileKernel wide_kernel_avx2();
TileKernel wide_kernel_avx512();
TileKernel bf16_kernel_avx512bf16();
TileKernel bf16_kernel_amx();

inline constexpr int wide_rows = 8;  // of a wide kernel's tile

// Multiplies two wide panels over k. A vector has Lanes floats, a row of the tile has Vectors of them, and Rows rows
// stay in registers at a time: Rows * Vectors sums, Vectors of b and one of a must fit into the registers (16 with
// AVX2, 32 with AVX-512).
template <int Lanes, int Vectors, int Rows>
void multiply_panels(std::int64_t k, const LeftPanel& a_panel, const std::byte* b_panel, bool add, float* sums) {
  typedef float V __attribute__((vector_size(Lanes * 4)));
  constexpr int cols = Lanes * Vectors;
  const auto* a = reinterpret_cast<const float*>(a_panel.data);
  const auto* b = reinterpret_cast<const float*>(b_panel);
  for (int row = 0; row < wide_rows; row += Rows) {
    V sum[Rows][Vectors] = {};
    for (std::int64_t p = 0; p < k; ++p) {
      V right[Vectors];
      for (int j = 0; j < Vectors; ++j) right[j] = *reinterpret_cast<const V*>(b + p * cols + j * Lanes);
      for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Vectors; ++j) sum[i][j] += a[p * wide_rows + row + i] * right[j];
    }
    for (int i = 0; i < Rows; ++i)
      for (int j = 0; j < Vectors; ++j) {
        V& out = *reinterpret_cast<V*>(sums + (row + i) * cols + j * Lanes);
        out = add ? out + sum[i][j] : sum[i][j];
      }
  }
}

template <int Lanes, int Vectors, int Rows>
constexpr TileKernel wide_kernel_of() {
  TileKernel kernel{wide_rows, Lanes * Vectors, 1, Packing::wide, Packing::wide, multiply_panels<Lanes, Vectors, Rows>};
  if constexpr (Vectors == 3) {
    kernel.narrow[0] = multiply_panels<Lanes, 1, Rows>;
    kernel.narrow[1] = multiply_panels<Lanes, 2, Rows>;
  }
  return kernel;
}

}  // namespace sestina::host

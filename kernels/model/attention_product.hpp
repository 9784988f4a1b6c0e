// The small matrix product that blocked attention is made of: tiles of C stay in registers while k runs. Host only.
#pragma once
#include <algorithm>
#include <cstddef>

// The width of the widest vector of the target. Host only. No compiler has one name for it: __BIGGEST_ALIGNMENT__ is it
// under g++, and 16 under clang whatever -march says, so the target's own macros are read.

namespace sestina {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

}  // namespace sestina

namespace sestina::attention_blocked {

template <class A>
inline constexpr int lanes = vector_bytes / static_cast<int>(sizeof(A));
template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(vector_bytes)));
};
// Rows of a tile: 2 vectors in each row, and room left for the operands in 32 (AVX-512) or 16 (AVX2) registers.
inline constexpr int tile_rows = vector_bytes == 32 ? 4 : 8;

template <class A>
constexpr int round_up(int n) {
  return (n + lanes<A> - 1) / lanes<A> * lanes<A>;
}

// The way in which the elements (i, k) of the left operand lie.
enum class Left { row_major, column_major };

template <int Rows, int Columns, Left left, class A>
void multiply_tile(int k, const A* a, int a_stride, const A* b, int b_stride, A* c, int c_stride, bool add) {
  using V = typename VectorOf<A>::type;
  V sum[Rows][Columns];
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns; ++j) {
      sum[i][j] = add ? *reinterpret_cast<const V*>(c + i * c_stride + j * lanes<A>) : V{};
    }
  }
  for (int p = 0; p < k; ++p) {
    V right[Columns];
    for (int j = 0; j < Columns; ++j) right[j] = *reinterpret_cast<const V*>(b + p * b_stride + j * lanes<A>);
    for (int i = 0; i < Rows; ++i) {
      const A value = left == Left::row_major ? a[i * a_stride + p] : a[p * a_stride + i];
      for (int j = 0; j < Columns; ++j) sum[i][j] += value * right[j];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns; ++j) *reinterpret_cast<V*>(c + i * c_stride + j * lanes<A>) = sum[i][j];
  }
}

template <int Rows, Left left, class A>
void multiply_rows(int n, int k, const A* a, int a_stride, const A* b, int b_stride, A* c, int c_stride, bool add) {
  int j = 0;
  for (; j + 2 * lanes<A> <= n; j += 2 * lanes<A>) {
    multiply_tile<Rows, 2, left>(k, a, a_stride, b + j, b_stride, c + j, c_stride, add);
  }
  if (j < n) multiply_tile<Rows, 1, left>(k, a, a_stride, b + j, b_stride, c + j, c_stride, add);
}

// Computes C (m, n) = A (m, k) B (k, n), or += with add. n is a multiple of lanes; rows of B and C are aligned to
// vectors. A is (m, k) with a_stride between rows, or the same matrix column by column (then a_stride is between
// columns).
template <Left left, class A>
void multiply(int m, int n, int k, const A* a, int a_stride, const A* b, int b_stride, A* c, int c_stride, bool add) {
  const int step = left == Left::row_major ? a_stride : 1;
  int i = 0;
  for (; i + tile_rows <= m; i += tile_rows) {
    multiply_rows<tile_rows, left>(n, k, a + i * step, a_stride, b, b_stride, c + i * c_stride, c_stride, add);
  }
  for (; i < m; ++i) multiply_rows<1, left>(n, k, a + i * step, a_stride, b, b_stride, c + i * c_stride, c_stride, add);
}

}  // namespace sestina::attention_blocked

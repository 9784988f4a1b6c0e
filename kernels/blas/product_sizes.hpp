// The sizes of a matrix product by its operands, which all twins of Gemm check in the same way. Private to them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/base/error.hpp"
#include "kernels/blas/gemm.hpp"

namespace sestina {

// Returns the sizes of C = op_a(A) op_b(B). Throws Error(internal) where the operands do not fit.
template <class A, class B, class C>
GemmShape product_sizes(Op op_a, Op op_b, const A& a, const B& b, const C& c) {
  const bool plain_a = op_a == Op::none, plain_b = op_b == Op::none;
  const std::size_t m = a.extent(plain_a ? 0 : 1), k = a.extent(plain_a ? 1 : 0), n = b.extent(plain_b ? 1 : 0);
  SESTINA_REQUIRE(b.extent(plain_b ? 0 : 1) == k && c.extent(0) == m && c.extent(1) == n,
                  "product of A ({}, {}){} and B ({}, {}){} into C ({}, {})", a.extent(0), a.extent(1),
                  plain_a ? "" : "^T", b.extent(0), b.extent(1), plain_b ? "" : "^T", c.extent(0), c.extent(1));
  return {m, n, k};
}

// These serve libraries whose sizes and leading dimensions are ints: they refuse larger ones.
template <class A, class B, class C>
GemmShape int_product_sizes(Op op_a, Op op_b, const A& a, const B& b, const C& c) {
  const GemmShape sizes = product_sizes(op_a, op_b, a, b, c);
  SESTINA_REQUIRE(std::max({sizes.m, sizes.n, sizes.k}) <= std::size_t(std::numeric_limits<int>::max()),
                  "{} x {} x {} exceeds an int", sizes.m, sizes.n, sizes.k);
  return sizes;
}
template <class View>
int int_leading(const View& x) {
  const std::int64_t stride = leading_dimension(x);
  SESTINA_REQUIRE(stride <= std::numeric_limits<int>::max(), "leading dimension {} exceeds an int", stride);
  return static_cast<int>(stride);
}

}  // namespace sestina

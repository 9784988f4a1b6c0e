// Sums over a row which several kernels take of the same values, with and without a branch added before. On the host
// each is a function that is compiled once: of a loop that is compiled at each place a compiler may make different
// vectors, whose sums have other bits (g++ 12 for Zen 1, in double), and a block that is computed again would not
// have the bits of the first time.
#pragma once
#include "kernels/blas/rows.hpp"

namespace sestina {

// Returns the sum of squares of x (n) to the whole lane.
template <class A, class T>
[[gnu::noinline]] KOKKOS_FUNCTION A squares_of(const HostLane& lane, const T* x, int n) {
  return sum_over<A>(lane, n, [&](int j) { return A(x[j]) * A(x[j]); });
}
template <class A, class Member, class T>
KOKKOS_FORCEINLINE_FUNCTION A squares_of(const Member& team, const T* x, int n) {
  return sum_over<A>(team, n, [&](int j) { return A(x[j]) * A(x[j]); });
}

// Returns the mean of x (n), n > 0, and the mean of squared distances to it, to the whole lane.
template <class A>
struct RowMoments {
  A mean, variance;
};
template <class A, class T, class Place>
KOKKOS_FORCEINLINE_FUNCTION RowMoments<A> moments_inline(const Place& lane, const T* x, int n) {
  const A mean = sum_over<A>(lane, n, [&](int j) { return A(x[j]); }) / A(n);
  return {mean, sum_over<A>(lane, n, [&](int j) { return (A(x[j]) - mean) * (A(x[j]) - mean); }) / A(n)};
}
template <class A, class T>
[[gnu::noinline]] KOKKOS_FUNCTION RowMoments<A> moments_of(const HostLane& lane, const T* x, int n) {
  return moments_inline<A>(lane, x, n);
}
template <class A, class Member, class T>
KOKKOS_FORCEINLINE_FUNCTION RowMoments<A> moments_of(const Member& team, const T* x, int n) {
  return moments_inline<A>(team, x, n);
}

}  // namespace sestina

// Sums whose bits depend on neither thread count nor layout: fixed chunks of `reduce_chunk` elements, each summed in
// double in one thread's fixed order, chunk sums added in order. Those that return a value fence.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

inline constexpr std::size_t reduce_chunk = 4096;
// Elements of a vector of chunk sums of n numbers.
constexpr std::size_t chunk_count(std::size_t n) { return (n + reduce_chunk - 1) / reduce_chunk; }

// What each of the sums below takes for n numbers.
template <class Exec>
struct SumScratch {
  SumScratch(Workspace<Exec>& workspace, std::size_t n) : chunks(workspace.template take<double>(chunk_count(n))) {}
  Vector<double, Exec> chunks;
};

// Sum of squares of x (n). NaN and infinity propagate.
template <class Exec, class T>
double sum_of_squares(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&);
// squares(c) = sum of squares of chunk c of x (n): `chunk` elements each, the last one shorter. Does not fence.
template <class Exec, class T>
void squares_of_chunks(const Exec&, Vector<const T, Exec> x, std::size_t chunk, Vector<double, Exec> squares);
// Sum of x (n).
template <class Exec, class T>
double sum(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&);
// The same into result (1), in the space; on a device they do not fence.
template <class Exec, class T>
void sum_of_squares_to(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&, Vector<double, Exec> result);
template <class Exec, class T>
void sum_to(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&, Vector<double, Exec> result);
// y (n) = T(x): rounding copy between float, double and bf16.
template <class Exec, class From, class To>
void convert(const Exec&, Vector<const From, Exec> x, Vector<To, Exec> y);

}  // namespace sestina

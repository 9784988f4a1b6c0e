// Sums over ranks whose bits depend on nothing but the number of ranks: a binary tree over their order, as gradients of
// micro-batches are summed in deterministic mode. So a rank that holds an aligned part of the leaves continues the
// tree.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// out (n) = sum over the ranks' vectors: own (n) is that of `rank`, others ((ranks - 1) n) hold the rest in rank order.
// Summed in Acc<T>. out may be own. A tree over ranks: (0 + 1) + (2 + 3), ...; the right side of the last pairs may be
// missing. Each element is read once.
template <class Exec, class T>
void tree_sum(const Exec&, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out);

// The same with the largest in place of the sum.
template <class Exec, class T>
void tree_max(const Exec&, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out);

// y (n) += x (n): one step of the tree.
template <class Exec, class A>
void add_to(const Exec&, Vector<const A, Exec> x, Vector<A, Exec> y);

}  // namespace sestina

// Products with block-diagonal matrices whose blocks (b, b) are stacked in a matrix (n, b), of columns that a
// permutation moves. On a host the columns are moved piece by piece, in the cache from which the product takes them or
// into which it has put them; on a device all of them before or after the batch of products. Pieces do not depend on
// the number of threads. scratch: at least as many elements as the permuted matrix. Nothing fences.
#pragma once
#include "kernels/blas/gemm.hpp"

namespace sestina {

// y (N, n) = x' op(blocks), x'[:, index[j]] = x[:, j].
template <class Exec, class T>
void put_times_blocks(const Exec&, Gemm<Exec>&, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Op op,
                      Matrix<const T, Exec> blocks, Vector<T, Exec> scratch, Matrix<T, Exec> y);

// y[:, j] = or += z[:, index[j]], z = x op(blocks), x (N, n).
template <class Exec, class T>
void times_blocks_take(const Exec&, Gemm<Exec>&, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks,
                       Vector<const std::int32_t, Exec> index, bool add, Vector<T, Exec> scratch, Matrix<T, Exec> y);

}  // namespace sestina

// Products of few rows with a large matrix on host threads, y = x W^T: their time is that of reading W once. Decoding
// uses them, with one row for each sequence. gemm.hpp has the other products.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Computes y (m, n) from x (m, k) and W (n, k); rows may be padded. Sums are in Acc<T>; the bits of a row of y depend
// neither on the number of threads nor on the other rows. Workspace: ThinProductScratch.
template <class T>
void thin_product(const Host&, Matrix<const T, Host> x, Matrix<const T, Host> w, Matrix<T, Host> y, Workspace<Host>&);

// x in the type of the sums, where that is not the type in which it is stored.
template <class T>
struct ThinProductScratch {
  ThinProductScratch(Workspace<Host>& workspace, std::size_t m, std::size_t k) {
    if (!std::is_same_v<T, Acc<T>>) wide = workspace.take<Acc<T>>(m, k);
  }
  Matrix<Acc<T>, Host> wide;  // (m, k), or (0, 0)
};

}  // namespace sestina

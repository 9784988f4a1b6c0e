// Products of few rows with a large matrix on host threads, y = x W^T: their time is that of reading W once. Decoding
// is made of them, one row for each sequence. Other products: gemm.hpp.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// x (m, k), W (n, k), y (m, n); rows may be padded. Sums in Acc<T>; the bits of a row of y depend neither on the number
// of threads nor on the other rows. Workspace: thin_product_bytes.
template <class T>
void thin_product(const Host&, Matrix<const T, Host> x, Matrix<const T, Host> w, Matrix<T, Host> y, Workspace<Host>&);

template <class T>
std::size_t thin_product_bytes(std::size_t m, std::size_t k) {
  return std::is_same_v<T, Acc<T>> ? 0 : Workspace<Host>::bytes<Acc<T>>(m * k);
}

}  // namespace sestina

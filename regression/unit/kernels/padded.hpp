// Operands of the tests of products: matrices with padded rows, and the types that a product may have.
#pragma once
#include <gtest/gtest.h>

#include <vector>

#include "kernels/blas/exec.hpp"

namespace sestina {

// A row-major matrix in host memory with padded rows, filled with values in [-1, 1) that bf16 holds exactly.
template <class T>
struct Padded {
  std::size_t rows, cols, stride;
  std::vector<T> data;

  Padded(std::size_t rows, std::size_t cols, std::size_t pad, unsigned seed)
      : rows(rows), cols(cols), stride(cols + pad), data(rows * stride + 1) {
    unsigned state = seed * 2654435761u + 12345u;
    for (T& x : data) {
      state = state * 1664525u + 1013904223u;
      x = T((static_cast<float>(state >> 24) - 128.0f) / 128.0f);
    }
  }
  template <class U>
  Matrix<U, Host> view() {
    using Strided = Kokkos::View<U**, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    const Strided whole(data.data(), rows, stride);
    return Kokkos::subview(whole, Kokkos::ALL, std::pair<std::size_t, std::size_t>(0, cols));
  }
};

template <class TA_, class TC_>
struct Types {
  using TA = TA_;
  using TC = TC_;
};

using ProductTypes = testing::Types<Types<float, float>, Types<double, double>, Types<bf16, bf16>, Types<bf16, float>>;

}  // namespace sestina

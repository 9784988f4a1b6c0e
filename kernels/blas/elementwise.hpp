// Loops over the elements of a matrix: on the host each thread takes rows, or pieces of long ones, and vectorises; on a
// device one element per thread.
//
// Here and in every header, a function template that holds a KOKKOS_LAMBDA is `static`: nvcc reaches the host side of
// such a lambda through pointers that each object fills in by itself, while the linker takes a function that several
// objects define from one of them, whose pointers may be null.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// body(i, begin, end): elements (i, begin) up to (i, end) of a matrix (rows, cols). `label`: at most 15 characters.
template <class Exec, class Body>
static void for_elements(const char* label, const Exec& exec, std::size_t rows, std::size_t cols, const Body& body) {
  constexpr std::size_t length = is_host<Exec> ? 4096 : 1;
  const std::size_t pieces = (cols + length - 1) / length;
  const Kokkos::RangePolicy<Exec> all(exec, 0, rows * pieces);
  Kokkos::parallel_for(
      label, all, KOKKOS_LAMBDA(std::size_t at) {
        const std::size_t row = at / pieces, begin = at % pieces * length;
        body(row, begin, Kokkos::min(begin + length, cols));
      });
}

// Copies what lies below the diagonal of x (d, d) above it.
template <class Exec, class T>
static void mirror_lower(const Exec& exec, Matrix<T, Exec> x) {
  for_elements(
      "mirror", exec, x.extent(0), x.extent(0), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = Kokkos::max(begin, i + 1); j < end; ++j) x(i, j) = x(j, i);
      });
}

template <class Exec>
static void set_identity(const Exec& exec, Matrix<float, Exec> x) {
  for_elements(
      "identity", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) x(i, j) = i == j ? 1.0f : 0.0f;
      });
}

// (Kokkos::deep_copy would allocate its labels.)
template <class Exec, class T>
static void set_zero(const Exec& exec, Vector<T, Exec> x) {
  for_elements(
      "set_zero", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x(i) = T(0);
      });
}

}  // namespace sestina

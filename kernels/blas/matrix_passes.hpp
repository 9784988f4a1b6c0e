// Passes over the elements of matrices: loops, copies, and the way to the wide form and back.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Loops over the elements of a matrix: on the host each thread takes rows, or pieces of long ones, and vectorises; on a
// device one element per thread.
//
// Here and in every header, a function template that holds a KOKKOS_LAMBDA is `static`: nvcc reaches the host side of
// such a lambda through pointers that each object fills in by itself, while the linker takes a function that several
// objects define from one of them, whose pointers may be null.

// Calls body(i, begin, end) for elements (i, begin) up to (i, end) of a matrix (rows, cols). `label` has at most 15
// characters.
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

// Sets x to zero. (Kokkos::deep_copy would allocate its labels.)
template <class Exec, class T>
static void set_zero(const Exec& exec, Vector<T, Exec> x) {
  for_elements(
      "set_zero", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x(i) = T(0);
      });
}

// Copies between matrices, whose rows may lie apart: for bases, and for blocks. Nothing fences.

// Sets y = x, or its transpose.
template <class Space>
void copy_matrix(const Space&, bool transposed, Matrix<const float, Space> x, Matrix<float, Space> y);

// Sets y = x, rounded; both (m, n), or y (0, 0): nothing is written.
template <class Space>
void round_matrix(const Space&, Matrix<const float, Space> x, Matrix<bf16, Space> y);

// Sets column j of y (d, d) to column order[j] of x (d, e) for j < e, and to zero beyond.
template <class Space>
void gather_columns(const Space&, Matrix<const float, Space> x, Vector<const std::int32_t, Space> order,
                    Matrix<float, Space> y);

// Copies the first `count` columns of basis (d, d) to x (d, count); transposed: to x (count, d), as rows.
template <class Space>
void leading_columns(const Space&, Matrix<const float, Space> basis, bool transposed, Matrix<float, Space> x);

// These passes go between a matrix (m, n) and its wide form, which is its transpose where m > n. The host takes blocks
// that stay in the first-level cache, by bands of rows, each done by one thread; a device one thread for each element.
inline constexpr std::size_t band_rows = 16, block_cols = 256;  // measured: 3072 x 1024, 1024 x 256, 352 x 128
constexpr std::size_t band_count(std::size_t rows) { return (rows + band_rows - 1) / band_rows; }

// Calls row(i, j, count, x) for pieces of all rows of a matrix (m, n): x points to its elements (i, j) to (i, j +
// count). given: the matrix, or, where `turned`, its transpose.
template <class T, class Row>
void read_band(const T* given, bool turned, std::size_t m, std::size_t n, std::size_t band, const Row& row) {
  const std::size_t first = band * band_rows, count = Kokkos::min(band_rows, m - first);
  if (!turned) {
    for (std::size_t i = first; i < first + count; ++i) row(i, std::size_t{0}, n, given + i * n);
    return;
  }
  T block[band_rows][block_cols];
  for (std::size_t j = 0; j < n; j += block_cols) {
    const std::size_t width = Kokkos::min(block_cols, n - j);
    for (std::size_t c = 0; c < width; ++c) {
      const T* from = given + (j + c) * m + first;
      for (std::size_t r = 0; r < count; ++r) block[r][c] = from[r];
    }
    for (std::size_t r = 0; r < count; ++r) row(first + r, j, width, block[r]);
  }
}

// Calls it for all bands. given: the matrix (m, n), or its transpose.
template <class Space, class T, class Row>
static void for_each_row(const char* label, const Space& exec, Matrix<const T, Space> given, std::size_t m,
                         std::size_t n, const Row& row) {
  const T* x = given.data();
  const bool turned = given.extent(0) != m;
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, band_count(m)),
                         [=](std::size_t band) { read_band(x, turned, m, n, band, row); });
  } else {
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Space>(exec, 0, m * n), KOKKOS_LAMBDA(std::size_t at) {
          const std::size_t i = at / n, j = at % n;
          row(i, j, std::size_t{1}, x + (turned ? j * m + i : at));
        });
  }
}

// The opposite of read_band: fill(i, j, count, x) writes the elements (i, j) to (i, j + count) to x.
template <class T, class Fill>
void write_band(T* wide, std::size_t m, std::size_t n, std::size_t band, const Fill& fill) {
  const std::size_t first = band * band_rows, count = Kokkos::min(band_rows, m - first);
  if (m <= n) {
    for (std::size_t i = first; i < first + count; ++i) fill(i, std::size_t{0}, n, wide + i * n);
    return;
  }
  T block[band_rows][block_cols];
  for (std::size_t j = 0; j < n; j += block_cols) {
    const std::size_t width = Kokkos::min(block_cols, n - j);
    for (std::size_t r = 0; r < count; ++r) fill(first + r, j, width, block[r]);
    for (std::size_t c = 0; c < width; ++c) {
      T* to = wide + (j + c) * m + first;
      for (std::size_t r = 0; r < count; ++r) to[r] = block[r][c];
    }
  }
}

template <class Space, class T, class Fill>
static void fill_wide(const char* label, const Space& exec, Matrix<T, Space> wide, std::size_t m, std::size_t n,
                      const Fill& fill) {
  T* x = wide.data();
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, band_count(m)),
                         [=](std::size_t band) { write_band(x, m, n, band, fill); });
  } else {
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Space>(exec, 0, m * n), KOKKOS_LAMBDA(std::size_t at) {
          const std::size_t i = at / n, j = at % n;
          fill(i, j, std::size_t{1}, x + (m > n ? j * m + i : at));
        });
  }
}

}  // namespace sestina

// Passes between a matrix (m, n) and its wide form, which is its transpose where m > n. On the host in blocks that stay
// in the first-level cache, by bands of rows, each done by one thread; on a device one thread for each element.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

inline constexpr std::size_t band_rows = 16, block_cols = 256;  // measured: 3072 x 1024, 1024 x 256, 352 x 128
constexpr std::size_t band_count(std::size_t rows) { return (rows + band_rows - 1) / band_rows; }

// Calls row(i, j, count, x) for pieces of all rows of the (m, n) matrix whose wide form is given: x points to its
// elements (i, j) to (i, j + count).
template <class T, class Row>
void read_band(const T* wide, std::size_t m, std::size_t n, std::size_t band, const Row& row) {
  const std::size_t first = band * band_rows, count = Kokkos::min(band_rows, m - first);
  if (m <= n) {
    for (std::size_t i = first; i < first + count; ++i) row(i, std::size_t{0}, n, wide + i * n);
    return;
  }
  T block[band_rows][block_cols];
  for (std::size_t j = 0; j < n; j += block_cols) {
    const std::size_t width = Kokkos::min(block_cols, n - j);
    for (std::size_t c = 0; c < width; ++c) {
      const T* from = wide + (j + c) * m + first;
      for (std::size_t r = 0; r < count; ++r) block[r][c] = from[r];
    }
    for (std::size_t r = 0; r < count; ++r) row(first + r, j, width, block[r]);
  }
}

template <class Space, class T, class Row>
static void for_each_row(const char* label, const Space& exec, Matrix<const T, Space> wide, std::size_t m,
                         std::size_t n, const Row& row) {
  const T* x = wide.data();
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, band_count(m)),
                         [=](std::size_t band) { read_band(x, m, n, band, row); });
  } else {
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Space>(exec, 0, m * n), KOKKOS_LAMBDA(std::size_t at) {
          const std::size_t i = at / n, j = at % n;
          row(i, j, std::size_t{1}, x + (m > n ? j * m + i : at));
        });
  }
}

// The other way: fill(i, j, count, x) writes the elements (i, j) to (i, j + count) to x.
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

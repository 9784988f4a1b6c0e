#include "kernels/optimizer/eigen.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

// Columns per thread at a time: on the host a cache line or more of each row.
template <class Exec>
constexpr std::size_t width = is_host<Exec> ? 64 : 1;

template <class Exec>
Kokkos::RangePolicy<Exec> strips(const Exec& exec, std::size_t columns) {
  return {exec, 0, (columns + width<Exec> - 1) / width<Exec>};
}

}  // namespace

template <class Exec, class T>
void column_dots(const Exec& exec, Matrix<const T, Exec> a, Matrix<const T, Exec> b, Vector<double, Exec> dots) {
  const std::size_t rows = a.extent(0), cols = a.extent(1);
  SESTINA_REQUIRE(b.extent(0) == rows && b.extent(1) == cols && dots.extent(0) == cols,
                  "A ({}, {}), B ({}, {}), {} dots", rows, cols, b.extent(0), b.extent(1), dots.extent(0));
  constexpr std::size_t most = width<Exec>;
  Kokkos::parallel_for(
      "column_dots", strips(exec, cols), KOKKOS_LAMBDA(std::size_t strip) {
        const std::size_t begin = strip * most, count = Kokkos::min(most, cols - begin);
        double sums[most] = {};
        for (std::size_t i = 0; i < rows; ++i) {
          const T* x = &a(i, begin);
          const T* y = &b(i, begin);
          for (std::size_t j = 0; j < count; ++j) sums[j] += static_cast<double>(x[j]) * static_cast<double>(y[j]);
        }
        for (std::size_t j = 0; j < count; ++j) dots(begin + j) = sums[j];
      });
}

template <class Exec>
void order_falling(const Exec& exec, Vector<const double, Exec> keys, Vector<std::int32_t, Exec> order) {
  const std::size_t n = keys.extent(0);
  SESTINA_REQUIRE(order.extent(0) == n, "{} keys into an order of {}", n, order.extent(0));
  // Each key counts the keys that stand before it: quadratic, but without a branch, and the same on every space.
  const Kokkos::RangePolicy<Exec> all(exec, 0, n);
  Kokkos::parallel_for(
      "order_falling", all, KOKKOS_LAMBDA(std::size_t j) {
        const auto value = [keys](std::size_t k) {
          return keys(k) == keys(k) ? keys(k) : -Kokkos::Experimental::infinity_v<double>;
        };
        const double key = value(j);
        std::int32_t rank = 0;
        for (std::size_t k = 0; k < j; ++k) rank += value(k) >= key;
        for (std::size_t k = j + 1; k < n; ++k) rank += value(k) > key;
        order(rank) = static_cast<std::int32_t>(j);
      });
}

template <class Exec, class T>
void columns_as_rows(const Exec& exec, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> order,
                     Matrix<T, Exec> y) {
  const std::size_t rows = x.extent(0), cols = x.extent(1);
  const bool ordered = order.extent(0) > 0;
  SESTINA_REQUIRE((!ordered || order.extent(0) == cols) && y.extent(0) == cols && y.extent(1) == rows,
                  "X ({}, {}), an order of {}, Y ({}, {})", rows, cols, order.extent(0), y.extent(0), y.extent(1));
  // A thread takes a few rows of X, which fill a cache line of each row of Y.
  constexpr std::size_t most = is_host<Exec> ? 16 : 1;
  const Kokkos::RangePolicy<Exec> all(exec, 0, (rows + most - 1) / most * (is_host<Exec> ? 1 : cols));
  Kokkos::parallel_for(
      "columns_as_rows", all, KOKKOS_LAMBDA(std::size_t at) {
        const std::size_t first = is_host<Exec> ? at * most : at % rows, last = Kokkos::min(first + most, rows);
        const std::size_t begin = is_host<Exec> ? 0 : at / rows, end = is_host<Exec> ? cols : begin + 1;
        for (std::size_t j = begin; j < end; ++j) {
          const std::size_t from = ordered ? static_cast<std::size_t>(order(j)) : j;
          for (std::size_t i = first; i < last; ++i) y(j, i) = x(i, from);
        }
      });
}

template <class Exec, class T>
void fix_signs(const Exec& exec, Matrix<T, Exec> x) {
  const std::size_t rows = x.extent(0), cols = x.extent(1);
  if (rows == 0) return;
  const Kokkos::RangePolicy<Exec> all(exec, 0, cols);
  Kokkos::parallel_for(
      "fix_signs", all, KOKKOS_LAMBDA(std::size_t j) {
        T largest = x(0, j);
        for (std::size_t i = 1; i < rows; ++i)
          if (Kokkos::abs(x(i, j)) > Kokkos::abs(largest)) largest = x(i, j);
        if (largest >= 0) return;
        for (std::size_t i = 0; i < rows; ++i) x(i, j) = -x(i, j);
      });
}

#define SESTINA_COLUMNS_TYPE(Exec, T)                                                                                  \
  template void column_dots<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>, Vector<double, Exec>); \
  template void columns_as_rows<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const std::int32_t, Exec>,         \
                                         Matrix<T, Exec>);                                                             \
  template void fix_signs<Exec, T>(const Exec&, Matrix<T, Exec>);
#define SESTINA_COLUMNS(Exec)                                                                             \
  template void order_falling<Exec>(const Exec&, Vector<const double, Exec>, Vector<std::int32_t, Exec>); \
  SESTINA_COLUMNS_TYPE(Exec, float)                                                                       \
  SESTINA_COLUMNS_TYPE(Exec, double)
SESTINA_INSTANTIATE_LANES(SESTINA_COLUMNS)

}  // namespace sestina

#include "kernels/blas/matrix_passes.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

// Calls body(i, j) for every element.
template <class Space, class Body>
void for_entries(const char* label, const Space& exec, std::size_t rows, std::size_t cols, const Body& body) {
  constexpr std::size_t width = is_host<Space> ? 64 : 1;  // elements of a row per thread at a time
  const std::size_t pieces = (cols + width - 1) / width;
  const Kokkos::RangePolicy<Space> all(exec, 0, rows * pieces);
  Kokkos::parallel_for(
      label, all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t i = piece / pieces, begin = piece % pieces * width;
        for (std::size_t j = begin; j < Kokkos::min(cols, begin + width); ++j) body(i, j);
      });
}

}  // namespace

template <class Space>
void copy_matrix(const Space& exec, bool transposed, Matrix<const float, Space> x, Matrix<float, Space> y) {
  SESTINA_REQUIRE(x.extent(transposed ? 1 : 0) == y.extent(0) && x.extent(transposed ? 0 : 1) == y.extent(1),
                  "x ({}, {}) into y ({}, {})", x.extent(0), x.extent(1), y.extent(0), y.extent(1));
  for_entries(
      "copy_matrix", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t j) { y(i, j) = transposed ? x(j, i) : x(i, j); });
}

template <class Space>
void round_matrix(const Space& exec, Matrix<const float, Space> x, Matrix<bf16, Space> y) {
  if (y.size() == 0) return;
  SESTINA_REQUIRE(x.extent(0) == y.extent(0) && x.extent(1) == y.extent(1), "x ({}, {}) into y ({}, {})", x.extent(0),
                  x.extent(1), y.extent(0), y.extent(1));
  for_entries(
      "round_matrix", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t j) { y(i, j) = bf16(x(i, j)); });
}

template <class Space>
void gather_columns(const Space& exec, Matrix<const float, Space> x, Vector<const std::int32_t, Space> order,
                    Matrix<float, Space> y) {
  const std::size_t taken = x.extent(1);
  SESTINA_REQUIRE(order.extent(0) == taken && y.extent(0) == x.extent(0) && y.extent(1) == x.extent(0),
                  "x ({}, {}), order {}, y ({}, {})", x.extent(0), taken, order.extent(0), y.extent(0), y.extent(1));
  for_entries(
      "gather_columns", exec, y.extent(0), y.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t j) {
        y(i, j) = j < taken ? x(i, static_cast<std::size_t>(order(j))) : 0.0f;
      });
}

template <class Space>
void leading_columns(const Space& exec, Matrix<const float, Space> basis, bool transposed, Matrix<float, Space> x) {
  SESTINA_REQUIRE(x.extent(transposed ? 1 : 0) == basis.extent(0) && x.extent(transposed ? 0 : 1) <= basis.extent(1),
                  "basis ({}, {}) into ({}, {})", basis.extent(0), basis.extent(1), x.extent(0), x.extent(1));
  for_entries(
      "leading_cols", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t j) { x(i, j) = transposed ? basis(j, i) : basis(i, j); });
}

#define SESTINA_MATRIX_COPY(Space)                                                                                 \
  template void copy_matrix<Space>(const Space&, bool, Matrix<const float, Space>, Matrix<float, Space>);          \
  template void round_matrix<Space>(const Space&, Matrix<const float, Space>, Matrix<bf16, Space>);                \
  template void gather_columns<Space>(const Space&, Matrix<const float, Space>, Vector<const std::int32_t, Space>, \
                                      Matrix<float, Space>);                                                       \
  template void leading_columns<Space>(const Space&, Matrix<const float, Space>, bool, Matrix<float, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_MATRIX_COPY)

}  // namespace sestina

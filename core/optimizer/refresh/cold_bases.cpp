// First bases (refresh.hpp) from the singular vectors of a gradient.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/optimizer/refresh/refresh.hpp"
#include "kernels/blas/elementwise.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/columns.hpp"

namespace sestina {
namespace {

// y (rows, cols) = x, both of any stride.
template <class Space, class From, class To>
void copy_block(const Space& exec, Matrix<const From, Space> x, Matrix<To, Space> y) {
  const std::size_t cols = x.extent(1);
  const Kokkos::RangePolicy<Space> all(exec, 0, x.size());
  Kokkos::parallel_for(
      "copy_block", all,
      KOKKOS_LAMBDA(std::size_t at) { y(at / cols, at % cols) = static_cast<To>(x(at / cols, at % cols)); });
}

// Singular vectors whose values rounding has not decided. The gradient is fp32: directions below its rounding are
// noise, and a library may return any basis of the rest.
template <class Space>
std::size_t numerical_rank(const Space& exec, Vector<const double, Space> values, std::size_t longest) {
  const double* falling = values.data();
  std::vector<double> fetched;
  if constexpr (!is_host<Space>) {
    fetched.resize(values.extent(0));
    Kokkos::deep_copy(exec, Vector<double, Serial>(fetched.data(), fetched.size()), values);
    falling = fetched.data();
  }
  exec.fence("cold_bases");
  const double* end = falling + values.extent(0);
  if (falling == end) return 0;
  const double floor =
      *falling * static_cast<double>(longest) * static_cast<double>(std::numeric_limits<float>::epsilon());
  return static_cast<std::size_t>(std::find_if(falling, end, [floor](double value) { return value <= floor; }) -
                                  falling);
}

// basis (d, d) = [the first `rank` columns of vectors (d, k), their complement], signs fixed.
template <class Space>
bool complete(Lane<Space>& lane, Matrix<const double, Space> vectors, std::size_t rank, Matrix<float, Space> basis) {
  const std::size_t d = vectors.extent(0);
  const auto frame = lane.workspace.frame();
  const auto columns = std::make_pair(std::size_t{0}, rank);
  const Matrix<double, Space> known = lane.workspace.template take<double>(d, rank);
  const Matrix<double, Space> whole = lane.workspace.template take<double>(d, d);
  copy_block<Space, double, double>(lane.exec, Kokkos::subview(vectors, Kokkos::ALL, columns), known);
  lane.exec.fence("cold_bases");
  if (rank < d && !lane.solver.template qr<double>(known, whole, lane.workspace)) return false;
  copy_block<Space, double, double>(lane.exec, known, Kokkos::subview(whole, Kokkos::ALL, columns));
  fix_signs<Space, double>(lane.exec, whole);
  convert<Space, double, float>(lane.exec, Vector<const double, Space>(whole.data(), whole.size()),
                                Vector<float, Space>(basis.data(), basis.size()));
  return true;
}

}  // namespace

template <class Space>
bool cold_bases(Lane<Space>& lane, Matrix<const float, Space> gradient, Matrix<float, Space> left,
                Matrix<float, Space> right) {
  const std::size_t m = gradient.extent(0), n = gradient.extent(1), k = std::min(m, n);
  SESTINA_REQUIRE((left.extent(0) == m || left.extent(0) == 0) && (right.extent(0) == n || right.extent(0) == 0),
                  "gradient ({}, {}), left ({}), right ({})", m, n, left.extent(0), right.extent(0));
  const auto frame = lane.workspace.frame();
  const Matrix<double, Space> a = lane.workspace.template take<double>(m, n);
  const Matrix<double, Space> u = lane.workspace.template take<double>(m, k);
  const Matrix<double, Space> v = lane.workspace.template take<double>(n, k);
  const Vector<double, Space> values = lane.workspace.template take<double>(k);
  copy_block<Space, float, double>(lane.exec, gradient, a);
  const Vector<const double, Space> all(a.data(), a.size());
  const double squares = sum_of_squares<Space, double>(lane.exec, all, lane.workspace);
  if (!std::isfinite(squares)) return false;
  if (squares == 0) {
    set_identity(lane.exec, left);
    set_identity(lane.exec, right);
    return true;
  }
  lane.exec.fence("cold_bases");
  if (!lane.solver.svd(a, u, values, v, lane.workspace)) return false;
  const std::size_t rank = numerical_rank<Space>(lane.exec, values, std::max(m, n));
  const bool good = (left.extent(0) == 0 || complete<Space>(lane, u, rank, left)) &&
                    (right.extent(0) == 0 || complete<Space>(lane, v, rank, right));
  lane.exec.fence("cold_bases");
  return good;
}

template <class Space>
std::size_t cold_bases_workspace_bytes(std::size_t m, std::size_t n) {
  using W = Workspace<Space>;
  const std::size_t k = std::min(m, n), d = std::max(m, n);
  const std::size_t held = W::template bytes<double>(m * n) + W::template bytes<double>(m * k) +
                           W::template bytes<double>(n * k) + W::template bytes<double>(k);
  const std::size_t completion = W::template bytes<double>(d * k) + W::template bytes<double>(d * d) +
                                 Solver<Space>::template qr_bytes<double>(d, k, d);
  return held + std::max({reduce_workspace_bytes<Space>(m * n), Solver<Space>::svd_bytes(m, n), completion});
}

#define SESTINA_COLD_BASES(Space)                                                                 \
  template bool cold_bases<Space>(Lane<Space>&, Matrix<const float, Space>, Matrix<float, Space>, \
                                  Matrix<float, Space>);                                          \
  template std::size_t cold_bases_workspace_bytes<Space>(std::size_t, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_COLD_BASES)

}  // namespace sestina

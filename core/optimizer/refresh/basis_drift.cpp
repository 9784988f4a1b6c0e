#include "core/optimizer/refresh/basis_drift.hpp"

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

template <class Space>
struct DriftPieces {
  DriftPieces(Workspace<Space>& workspace, std::size_t d)
      : product(workspace.template take<float>(d, d)),
        quotients(workspace.template take<double>(d)),
        squares(workspace.template take<double>(1)) {}
  Matrix<float, Space> product;
  Vector<double, Space> quotients, squares;  // squares: of the whole
};

// Sets product = K Q - Q diag(quotients), where it is K Q.
template <class Space>
void take_diagonal_off(const Space& exec, Matrix<const float, Space> basis, Vector<const double, Space> quotients,
                       Matrix<float, Space> product) {
  for_elements(
      "off_diagonal", exec, product.extent(0), product.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j)
          product(i, j) =
              static_cast<float>(static_cast<double>(product(i, j)) - quotients(j) * static_cast<double>(basis(i, j)));
      });
}

// Replaces the squares of the off-diagonal part by its norm relative to the whole.
template <class Space>
void to_drift(const Space& exec, Vector<const double, Space> whole, Vector<double, Space> off) {
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "drift", one, KOKKOS_LAMBDA(std::size_t) {
        const double ratio = whole(0) == 0 ? 0 : Kokkos::sqrt(off(0) / whole(0));
        off(0) = Kokkos::isfinite(ratio) ? ratio : Kokkos::Experimental::infinity_v<double>;
      });
}

}  // namespace

template <class Space>
void basis_drift(Stream<Space>& stream, Matrix<const float, Space> factor, Matrix<const float, Space> basis,
                 Vector<double, Space> drift) {
  const auto frame = stream.workspace.frame();
  const DriftPieces<Space> p(stream.workspace, factor.extent(0));
  stream.gemm.template operator()<float, float>(Op::none, Op::none, 1, factor, basis, 0, p.product);
  column_dots<Space, float>(stream.exec, basis, p.product, p.quotients);
  const Vector<const float, Space> product = flat<const float, Space>(p.product);
  sum_of_squares_to<Space, float>(stream.exec, product, stream.workspace, p.squares);
  take_diagonal_off<Space>(stream.exec, basis, p.quotients, p.product);
  sum_of_squares_to<Space, float>(stream.exec, product, stream.workspace, drift);
  to_drift<Space>(stream.exec, p.squares, drift);
}

template <class Space>
void declare_basis_drift(Workspace<Space>& workspace, std::size_t d) {
  const auto frame = workspace.frame();
  const DriftPieces<Space> pieces(workspace, d);
  declare<SumScratch<Space>>(workspace, d * d);
}

#define SESTINA_BASIS_DRIFT(Space)                                                                         \
  template void basis_drift<Space>(Stream<Space>&, Matrix<const float, Space>, Matrix<const float, Space>, \
                                   Vector<double, Space>);                                                 \
  template void declare_basis_drift<Space>(Workspace<Space>&, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_BASIS_DRIFT)

}  // namespace sestina

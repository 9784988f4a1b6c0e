// First bases (refresh.hpp) from the singular vectors of a gradient, whole or by way of a Gram matrix.
//
// The Gram matrix loses digits: its eigenvalues are the squares of the singular values s, with errors of eps64 s_1^2
// (eps64 and eps32 are the roundings of fp64 and fp32). By Davis and Kahan the span of some vectors turns by at most c
// eps64 s_1^2 / (s_i^2 - s_j^2), i inside and j outside, that is (eps64 / eps32) s_1 / (s_i + s_j) of the c eps32 s_1 /
// (s_i - s_j) by which the rounding of the fp32 gradient itself turns it. Directions with s below max(m, n) eps32 s_1
// are not used: for all others this is below 1 / 100. Vectors of the longer side, A^T u / s, have products of eps64
// s_1^2 / (s_i s_j): where that is more than the rounding to fp32, they are made orthonormal, the largest s first.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/optimizer/refresh/refresh.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {
namespace {

// Sets y (rows, cols) = x, both of any stride.
template <class Space, class From, class To>
void copy_block(const Space& exec, Matrix<const From, Space> x, Matrix<To, Space> y) {
  const std::size_t cols = x.extent(1);
  const Kokkos::RangePolicy<Space> all(exec, 0, x.size());
  Kokkos::parallel_for(
      "copy_block", all,
      KOKKOS_LAMBDA(std::size_t at) { y(at / cols, at % cols) = static_cast<To>(x(at / cols, at % cols)); });
}

// The memory of the two ways for a gradient (m, n): for both the gradient in double,
template <class Space>
struct WideGradient {
  WideGradient(Workspace<Space>& workspace, std::size_t m, std::size_t n) : a(workspace.template take<double>(m, n)) {}
  Matrix<double, Space> a;
};
// the pieces of an SVD,
template <class Space>
struct SvdPieces {
  SvdPieces(Workspace<Space>& workspace, std::size_t m, std::size_t n)
      : u(workspace.template take<double>(m, std::min(m, n))),
        v(workspace.template take<double>(n, std::min(m, n))),
        values(workspace.template take<double>(std::min(m, n))) {}
  Matrix<double, Space> u, v;
  Vector<double, Space> values;
};
template <class Space>
struct CompletionPieces {
  CompletionPieces(Workspace<Space>& workspace, std::size_t d, std::size_t rank)
      : known(workspace.template take<double>(d, rank)), whole(workspace.template take<double>(d, d)) {}
  Matrix<double, Space> known, whole;
};
// the pieces of a Gram matrix (k, k), and for each side (d) those made from so many of its vectors.
template <class Space>
struct GramPieces {
  GramPieces(Workspace<Space>& workspace, std::size_t k)
      : gram(workspace.template take<double>(k, k)),
        u(workspace.template take<double>(k, k)),
        squares(workspace.template take<double>(k)) {}
  Matrix<double, Space> gram, u;
  Vector<double, Space> squares;
};
template <class Space>
struct SidePieces {
  SidePieces(Workspace<Space>& workspace, std::size_t k, std::size_t vectors, std::size_t longer = 0)
      : some(workspace.template take<double>(k, vectors)), v(workspace.template take<double>(longer, vectors)) {}
  Matrix<double, Space> some, v;  // v only for the longer side
};
template <class Space>
struct FillPieces {
  FillPieces(Workspace<Space>& workspace, std::size_t d, std::size_t rank)
      : known(workspace.template take<float>(d, rank)) {}
  Matrix<float, Space> known;
};

struct Rank {
  std::size_t columns = 0;
  double spread = 1;  // the largest of the values that count, divided by the smallest
};

// Returns the number of singular vectors whose values rounding has not decided. The gradient is fp32: directions below
// its rounding are noise, and a library may return any basis of the rest. `values` are the singular values to the given
// power, 1 or 2.
template <class Space>
Rank numerical_rank(const Space& exec, Vector<const double, Space> values, std::size_t longest, int power) {
  const double* falling = values.data();
  std::vector<double> fetched;
  if constexpr (!is_host<Space>) {
    fetched.resize(values.extent(0));
    Kokkos::deep_copy(exec, Vector<double, Serial>(fetched.data(), fetched.size()), values);
    falling = fetched.data();
  }
  exec.fence("cold_bases");
  const double* end = falling + values.extent(0);
  if (falling == end) return {};
  const double floor =
      *falling *
      std::pow(static_cast<double>(longest) * static_cast<double>(std::numeric_limits<float>::epsilon()), power);
  const double* const last = std::find_if(falling, end, [floor](double value) { return value <= floor; });
  if (last == falling) return {};
  return {static_cast<std::size_t>(last - falling), *falling / last[-1]};
}

// Sets basis (d, d) = [the first `rank` columns of vectors (d, k), their complement], signs fixed.
template <class Space>
bool complete(Stream<Space>& stream, Matrix<const double, Space> vectors, std::size_t rank,
              Matrix<float, Space> basis) {
  const std::size_t d = vectors.extent(0);
  const auto frame = stream.workspace.frame();
  const auto columns = std::make_pair(std::size_t{0}, rank);
  const CompletionPieces<Space> pieces(stream.workspace, d, rank);
  const Matrix<double, Space> known = pieces.known, whole = pieces.whole;
  copy_block<Space, double, double>(stream.exec, Kokkos::subview(vectors, Kokkos::ALL, columns), known);
  stream.exec.fence("cold_bases");
  if (rank < d && !stream.solver.template qr<double>(known, whole, stream.workspace)) return false;
  copy_block<Space, double, double>(stream.exec, known, Kokkos::subview(whole, Kokkos::ALL, columns));
  fix_signs<Space, double>(stream.exec, whole);
  convert<Space, double, float>(stream.exec, Vector<const double, Space>(whole.data(), whole.size()),
                                Vector<float, Space>(basis.data(), basis.size()));
  return true;
}

// Sets basis (d, p) = `vectors` (d, rank), which are changed, and as many more columns of an orthonormal basis; signs
// fixed. The added columns are computed in fp32, as they are kept: no vector of the gradient is in them.
// are_orthonormal: to fp32.
template <class Space>
bool fill_basis(Stream<Space>& stream, bool are_orthonormal, Matrix<double, Space> vectors,
                Matrix<float, Space> basis) {
  const std::size_t d = basis.extent(0), rank = vectors.extent(1);
  const auto frame = stream.workspace.frame();
  stream.exec.fence("cold_bases");
  if (!are_orthonormal && !stream.solver.template qr<double>(vectors, vectors, stream.workspace)) return false;
  fix_signs<Space, double>(stream.exec, vectors);
  if (rank < basis.extent(1)) {
    const Matrix<float, Space> known = FillPieces<Space>(stream.workspace, d, rank).known;
    copy_block<Space, double, float>(stream.exec, vectors, known);
    stream.exec.fence("cold_bases");
    if (!stream.solver.template qr<float>(known, basis, stream.workspace)) return false;
    fix_signs<Space, float>(stream.exec, basis);
  }
  copy_block<Space, double, float>(stream.exec, vectors,
                                   Kokkos::subview(basis, Kokkos::ALL, std::make_pair(std::size_t{0}, rank)));
  return true;
}

// Divides column j of x by the root of values(j): A^T U = V diag(roots).
template <class Space>
void over_roots(const Space& exec, Vector<const double, Space> values, Matrix<double, Space> x) {
  for_elements(
      "over_roots", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) x(i, j) /= Kokkos::sqrt(values(j));
      });
}

// Computes all vectors of both sides from an SVD.
template <class Space>
bool bases_of_svd(Stream<Space>& stream, Matrix<const double, Space> a, Matrix<float, Space> left,
                  Matrix<float, Space> right) {
  const std::size_t m = a.extent(0), n = a.extent(1);
  const SvdPieces<Space> p(stream.workspace, m, n);
  stream.exec.fence("cold_bases");
  if (!stream.solver.svd(a, p.u, p.values, p.v, stream.workspace)) return false;
  const std::size_t rank = numerical_rank<Space>(stream.exec, p.values, std::max(m, n), 1).columns;
  return (left.extent(0) == 0 || complete<Space>(stream, p.u, rank, left)) &&
         (right.extent(0) == 0 || complete<Space>(stream, p.v, rank, right));
}

// Computes bases from the eigenvectors of the shorter side's Gram matrix, which A turns into those of the longer side.
template <class Space>
bool bases_of_gram(Stream<Space>& stream, Matrix<const double, Space> a, Matrix<float, Space> left,
                   Matrix<float, Space> right) {
  const std::size_t m = a.extent(0), n = a.extent(1), k = std::min(m, n);
  const bool by_rows = m <= n;  // the shorter side is the left one
  const Matrix<float, Space> shorter = by_rows ? left : right, longer = by_rows ? right : left;
  const GramPieces<Space> p(stream.workspace, k);
  const Matrix<double, Space> gram = p.gram, u = p.u;
  const Vector<double, Space> squares = p.squares;
  stream.gemm.template symmetric<double, double>(by_rows ? Op::none : Op::transpose, 1, a, 0, gram);
  stream.exec.fence("cold_bases");
  if (!stream.solver.template eigh<double>(gram, u, squares, stream.workspace)) return false;
  const Rank rank = numerical_rank<Space>(stream.exec, squares, std::max(m, n), 2);
  const auto first = [&](const Matrix<double, Space>& some) {
    copy_block<Space, double, double>(
        stream.exec, Kokkos::subview(u, Kokkos::ALL, std::make_pair(std::size_t{0}, some.extent(1))), some);
    return some;
  };
  if (shorter.extent(0) > 0) {
    const auto frame = stream.workspace.frame();
    const SidePieces<Space> side(stream.workspace, k, std::min(rank.columns, shorter.extent(1)));
    if (!fill_basis<Space>(stream, true, first(side.some), shorter)) return false;
  }
  if (longer.extent(0) == 0) return true;
  const auto frame = stream.workspace.frame();
  const SidePieces<Space> side(stream.workspace, k, std::min(rank.columns, longer.extent(1)), longer.extent(0));
  const Matrix<double, Space> some = first(side.some), v = side.v;
  stream.gemm.template operator()<double, double>(by_rows ? Op::transpose : Op::none, Op::none, 1, a, some, 0, v);
  over_roots<Space>(stream.exec, squares, v);
  constexpr double eps64 = std::numeric_limits<double>::epsilon(), eps32 = std::numeric_limits<float>::epsilon();
  return fill_basis<Space>(stream, static_cast<double>(k) * eps64 * rank.spread < eps32, v, longer);
}

}  // namespace

template <class Space>
bool cold_bases(Stream<Space>& stream, BasisForm form, Matrix<const float, Space> gradient, Matrix<float, Space> left,
                Matrix<float, Space> right) {
  const std::size_t m = gradient.extent(0), n = gradient.extent(1);
  SESTINA_REQUIRE((left.extent(0) == m || left.extent(0) == 0) && (right.extent(0) == n || right.extent(0) == 0),
                  "gradient ({}, {}), left ({}), right ({})", m, n, left.extent(0), right.extent(0));
  const auto frame = stream.workspace.frame();
  const Matrix<double, Space> a = WideGradient<Space>(stream.workspace, m, n).a;
  copy_block<Space, float, double>(stream.exec, gradient, a);
  const Vector<const double, Space> all(a.data(), a.size());
  const double squares = sum_of_squares<Space, double>(stream.exec, all, stream.workspace);
  if (!std::isfinite(squares)) return false;
  if (squares == 0) {
    set_identity(stream.exec, left);
    set_identity(stream.exec, right);
    return true;
  }
  const bool good = form == BasisForm::svd ? bases_of_svd<Space>(stream, a, left, right)
                                           : bases_of_gram<Space>(stream, a, left, right);
  stream.exec.fence("cold_bases");
  return good;
}

namespace {

template <class Space>
void declare_svd_way(Workspace<Space>& workspace, std::size_t m, std::size_t n, std::size_t left, std::size_t right) {
  const auto frame = workspace.frame();
  const SvdPieces<Space> pieces(workspace, m, n);
  Solver<Space>::declare_svd(workspace, m, n);
  const auto completion = [&](std::size_t d) {
    const auto inner = workspace.frame();
    const CompletionPieces<Space> known(workspace, d, std::min(m, n));
    Solver<Space>::template declare_qr<double>(workspace, d, std::min(m, n), d);
  };
  if (left > 0) completion(m);
  if (right > 0) completion(n);
}

// Declares a side of length d of which `columns` are wanted and `rank` known.
template <class Space>
void declare_fill(Workspace<Space>& workspace, bool are_orthonormal, std::size_t d, std::size_t rank,
                  std::size_t columns) {
  const auto frame = workspace.frame();
  if (!are_orthonormal) Solver<Space>::template declare_qr<double>(workspace, d, rank, rank);
  const FillPieces<Space> pieces(workspace, d, rank);
  Solver<Space>::template declare_qr<float>(workspace, d, rank, columns);
}

template <class Space>
void declare_gram_way(Workspace<Space>& workspace, std::size_t m, std::size_t n, std::size_t left, std::size_t right) {
  const auto frame = workspace.frame();
  const std::size_t k = std::min(m, n), d = std::max(m, n);
  const std::size_t shorter = m <= n ? left : right, longer = m <= n ? right : left;
  const GramPieces<Space> pieces(workspace, k);
  Solver<Space>::template declare_eigh<double>(workspace, k);
  if (shorter > 0) {
    const auto inner = workspace.frame();
    const SidePieces<Space> side(workspace, k, std::min(k, shorter));
    declare_fill(workspace, true, k, std::min(k, shorter), shorter);
  }
  if (longer > 0) {
    const auto inner = workspace.frame();
    const SidePieces<Space> side(workspace, k, std::min(k, longer), d);
    declare_fill(workspace, false, d, std::min(k, longer), longer);
  }
}

}  // namespace

template <class Space>
void declare_cold_bases(Workspace<Space>& workspace, BasisForm form, std::size_t m, std::size_t n, std::size_t left,
                        std::size_t right) {
  const auto frame = workspace.frame();
  const WideGradient<Space> gradient(workspace, m, n);
  declare<SumScratch<Space>>(workspace, m * n);
  if (form == BasisForm::svd)
    declare_svd_way(workspace, m, n, left, right);
  else
    declare_gram_way(workspace, m, n, left, right);
}

#define SESTINA_COLD_BASES(Space)                                                                              \
  template bool cold_bases<Space>(Stream<Space>&, BasisForm, Matrix<const float, Space>, Matrix<float, Space>, \
                                  Matrix<float, Space>);                                                       \
  template void declare_cold_bases<Space>(Workspace<Space>&, BasisForm, std::size_t, std::size_t, std::size_t, \
                                          std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_COLD_BASES)

}  // namespace sestina

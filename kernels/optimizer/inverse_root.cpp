#include "kernels/optimizer/inverse_root.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {
namespace {

constexpr int most_iterations = 100;

// Memory that each of the three holds from beginning to end.
template <class Exec, class T>
struct EighPieces {
  EighPieces(Workspace<Exec>& workspace, std::size_t d)
      : values(workspace.template take<T>(d)), b(workspace.template take<T>(d, d)) {}
  Vector<T, Exec> values;
  Matrix<T, Exec> b;
};
template <class Exec, class T>
struct QrPieces {
  QrPieces(Workspace<Exec>& workspace, std::size_t d)
      : quotients(workspace.template take<double>(d)),
        order(workspace.template take<std::int32_t>(d)),
        b(workspace.template take<T>(d, d)),
        product(workspace.template take<T>(d, d)),
        next(workspace.template take<T>(d, d)) {}
  Vector<double, Exec> quotients;
  Vector<std::int32_t, Exec> order;
  Matrix<T, Exec> b, product, next;  // next: columns of the next basis, as rows
};
template <class Exec, class T>
struct NewtonPieces {
  NewtonPieces(Workspace<Exec>& workspace, std::size_t d)
      : m(workspace.template take<T>(d, d)),
        x(workspace.template take<T>(d, d)),
        step(workspace.template take<T>(d, d)),
        one(workspace.template take<T>(d, d)),
        two(workspace.template take<T>(d, d)),
        three(workspace.template take<T>(d, d)) {}
  Matrix<T, Exec> m, x, step, one, two, three;
};

template <class Exec, class T>
struct AssembleScratch {
  AssembleScratch(Workspace<Exec>& workspace, std::size_t d)
      : scaled(workspace.template take<T>(d, d)), roots(workspace.template take<double>(d)) {}
  Matrix<T, Exec> scaled;
  Vector<double, Exec> roots;
};

template <class Exec>
struct IterationScratch {  // scratch of iterate_by_space
  explicit IterationScratch(Workspace<Exec>& workspace) : met(workspace.template take<double>(1)) {}
  Vector<double, Exec> met;
};

template <class Exec>
struct NormsScratch {  // scratch of look_whether_met
  explicit NormsScratch(Workspace<Exec>& workspace)
      : whole(workspace.template take<double>(1)), diagonal(workspace.template take<double>(1)) {}
  Vector<double, Exec> whole, diagonal;
};

template <class Exec, class T>
struct Work {
  RootTools<Exec> tools;
  const RootRule& rule;
  std::size_t d;

  void multiply(Matrix<const T, Exec> a, Matrix<const T, Exec> b, Matrix<T, Exec> c) {
    tools.gemm.template operator()<T, T>(Op::none, Op::none, 1, a, b, 0, c);
  }
  void multiply_by_itself(Matrix<const T, Exec> a, Matrix<T, Exec> c) {  // a symmetric
    tools.gemm.template symmetric<T, T>(Op::none, 1, a, 0, c);
  }
  double squares(Matrix<const T, Exec> x) {
    return sum_of_squares<Exec, T>(tools.exec, Vector<const T, Exec>(x.data(), x.size()), tools.workspace);
  }
  bool by_space() const { return tools.squares_of_root.extent(0) > 0; }
  bool is_finite(Matrix<const T, Exec> root) {
    if (!by_space()) return std::isfinite(squares(root));
    const Vector<const T, Exec> all(root.data(), root.size());
    squares_of_chunks<Exec, T>(tools.exec, all, reduce_chunk, tools.squares_of_root);
    return true;
  }
  double squares(Vector<const double, Exec> x) { return sum_of_squares<Exec, double>(tools.exec, x, tools.workspace); }
};

// Computes y = factor x + shift I.
template <class Exec, class T>
void scale_and_shift(const Exec& exec, T factor, Matrix<const T, Exec> x, T shift, Matrix<T, Exec> y) {
  const std::size_t d = x.extent(0);
  const T* from = x.data();
  T* to = y.data();
  for_elements(
      "shift", exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) to[i * d + j] = factor * from[i * d + j];
        if (begin <= i && i < end) to[i * d + i] += shift;
      });
}

// Sets roots = (values + what the rule adds)^(-p / 2).
template <class Exec, class V>
void half_roots(const Exec& exec, const RootRule& rule, Vector<const V, Exec> values, Vector<double, Exec> roots) {
  const double power = -0.5 * rule.exponent, eps = rule.eps;
  const bool before = rule.perturb_before;
  const Kokkos::RangePolicy<Exec> one(exec, 0, 1);
  Kokkos::parallel_for(
      "half_roots", one, KOKKOS_LAMBDA(std::size_t) {
        double least = static_cast<double>(values(0));
        for (std::size_t j = 1; j < values.extent(0); ++j) least = Kokkos::min(least, static_cast<double>(values(j)));
        const double shift = before ? Kokkos::max(0.0, eps - least) : eps - Kokkos::min(0.0, least);
        for (std::size_t j = 0; j < values.extent(0); ++j)
          roots(j) = Kokkos::pow(static_cast<double>(values(j)) + shift, power);
      });
}

// Computes root = Q diag(values^-p) Q^T as the square of Q diag(values^(-p/2)), so that it is symmetric to the last
// bit.
template <class Exec, class T, class V>
bool assemble(Work<Exec, T>& w, Matrix<const T, Exec> basis, Vector<const V, Exec> values, Matrix<T, Exec> root) {
  const auto frame = w.tools.workspace.frame();
  const AssembleScratch<Exec, T> scratch(w.tools.workspace, w.d);
  const Matrix<T, Exec> scaled = scratch.scaled;
  const Vector<double, Exec> roots = scratch.roots;
  half_roots<Exec, V>(w.tools.exec, w.rule, values, roots);
  const std::size_t d = w.d;
  for_elements(
      "scale_columns", w.tools.exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) scaled(i, j) = basis(i, j) * static_cast<T>(roots(j));
      });
  w.multiply_by_itself(scaled, root);
  return w.is_finite(root);
}

// Sets b to the matrix whose eigenvalues half_roots() shifts.
template <class Exec, class T>
void regularise(Work<Exec, T>& w, Matrix<const T, Exec> factor, Matrix<T, Exec> b) {
  scale_and_shift<Exec, T>(w.tools.exec, static_cast<T>(w.rule.scale), factor,
                           static_cast<T>(w.rule.perturb_before ? w.rule.eps : 0), b);
}

template <class T>
constexpr double rounding = std::numeric_limits<T>::epsilon();

}  // namespace

template <class Exec, class T>
void root_matrix(RootTools<Exec> tools, const RootRule& rule, Matrix<const T, Exec> factor, Matrix<T, Exec> b) {
  Work<Exec, T> w{tools, rule, factor.extent(0)};
  regularise<Exec, T>(w, factor, b);
}

template <class Exec, class T>
bool root_of_eigenvalues(RootTools<Exec> tools, const RootRule& rule, Matrix<const T, Exec> basis,
                         Vector<const T, Exec> values, Matrix<T, Exec> root) {
  Work<Exec, T> w{tools, rule, root.extent(0)};
  return assemble<Exec, T, T>(w, basis, values, root);
}

template <class Exec, class T>
bool inverse_root_eigh(RootTools<Exec> tools, const RootRule& rule, Matrix<const T, Exec> factor, Matrix<T, Exec> basis,
                       Matrix<T, Exec> root) {
  const auto frame = tools.workspace.frame();
  const std::size_t d = factor.extent(0);
  if (d == 0) return true;
  const EighPieces<Exec, T> p(tools.workspace, d);
  root_matrix<Exec, T>(tools, rule, factor, p.b);
  return tools.solver.template eigh<T>(p.b, basis, p.values, tools.workspace) &&
         root_of_eigenvalues<Exec, T>(tools, rule, basis, p.values, root);
}

namespace {

// Sets `met` to 1 where Q^T B Q, whose diagonal is `quotients`, is diagonal within the tolerance; a 1 stays. Q is
// orthogonal, so that the norm of Q^T B Q is that of B Q.
template <class Exec, class T>
void look_whether_met(Work<Exec, T>& w, Matrix<const T, Exec> product, Vector<const double, Exec> quotients,
                      Vector<double, Exec> met) {
  const auto frame = w.tools.workspace.frame();
  const NormsScratch<Exec> norms(w.tools.workspace);
  const Vector<double, Exec> whole = norms.whole, diagonal = norms.diagonal;
  sum_of_squares_to<Exec, T>(w.tools.exec, Vector<const T, Exec>(product.data(), product.size()), w.tools.workspace,
                             whole);
  sum_of_squares_to<Exec, double>(w.tools.exec, quotients, w.tools.workspace, diagonal);
  const double most = w.rule.tolerance * w.rule.tolerance;
  const Kokkos::RangePolicy<Exec> one(w.tools.exec, 0, 1);
  Kokkos::parallel_for(
      "met", one, KOKKOS_LAMBDA(std::size_t) {
        if (whole(0) - diagonal(0) <= most * whole(0)) met(0) = 1;
      });
}

// Runs the iterations of inverse_root_qr() with all decisions in the space: none is left out, and the basis no longer
// changes once the tolerance is met.
template <class Exec, class T>
bool iterate_by_space(Work<Exec, T>& w, const QrPieces<Exec, T>& p, Matrix<T, Exec> basis, int iterations) {
  const auto frame = w.tools.workspace.frame();
  const Exec& exec = w.tools.exec;
  const Matrix<T, Exec> product = p.product, next = p.next;
  const Vector<double, Exec> quotients = p.quotients;
  const Vector<std::int32_t, Exec> order = p.order;
  const Vector<double, Exec> met = IterationScratch<Exec>(w.tools.workspace).met;
  set_zero<Exec, double>(exec, met);
  for (int done = 0;; ++done) {
    w.multiply(p.b, basis, product);
    column_dots<Exec, T>(exec, basis, product, quotients);
    if (done == iterations) return true;
    look_whether_met<Exec, T>(w, product, quotients, met);
    order_falling<Exec>(exec, quotients, order);
    columns_as_rows<Exec, T>(exec, product, order, next);
    if (!w.tools.solver.template qr_columns<T>(w.d, next, w.tools.workspace)) return false;
    for_elements(
        "next_basis", exec, w.d, w.d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
          if (met(0) != 0) return;
          for (std::size_t j = begin; j < end; ++j) basis(i, j) = next(j, i);
        });
  }
}

}  // namespace

template <class Exec, class T>
bool inverse_root_qr(RootTools<Exec> tools, const RootRule& rule, Matrix<const T, Exec> factor, Matrix<T, Exec> basis,
                     Matrix<T, Exec> root) {
  const auto frame = tools.workspace.frame();
  Work<Exec, T> w{tools, rule, factor.extent(0)};
  if (w.d == 0) return true;
  const QrPieces<Exec, T> p(tools.workspace, w.d);
  const Vector<double, Exec> quotients = p.quotients;
  const Vector<std::int32_t, Exec> order = p.order;
  const Matrix<T, Exec> b = p.b, product = p.product;
  regularise<Exec, T>(w, factor, b);
  const int iterations = rule.max_iterations > 0 ? rule.max_iterations : most_iterations;
  if (w.by_space())
    return iterate_by_space<Exec, T>(w, p, basis, iterations) && assemble<Exec, T, double>(w, basis, quotients, root);
  for (int done = 0;; ++done) {
    w.multiply(b, basis, product);
    column_dots<Exec, T>(tools.exec, basis, product, quotients);
    // Q is orthogonal: the norm of Q^T B Q is that of B Q.
    const double whole = w.squares(product), off = whole - w.squares(quotients);
    if (!std::isfinite(whole)) return false;
    if (done == iterations || off <= rule.tolerance * rule.tolerance * whole) break;
    order_falling<Exec>(tools.exec, quotients, order);
    columns_as_rows<Exec, T>(tools.exec, product, order, p.next);
    if (!tools.solver.template qr_columns<T>(w.d, p.next, tools.workspace)) return false;
    columns_as_rows<Exec, T>(tools.exec, p.next, {}, basis);
  }
  return assemble<Exec, T, double>(w, basis, quotients, root);
}

int newton_order(double exponent) {
  constexpr double tolerance = 1e-9;
  const double order = exponent > 0 ? std::round(1 / exponent) : 0;
  return order >= 1 && std::abs(order * exponent - 1) < tolerance ? static_cast<int>(order) : 0;
}

namespace {

// Computes C = A B for commuting symmetric A and B, whose product is symmetric: rows of tiles up to the diagonal,
// mirrored.
template <class Exec, class T>
void multiply_commuting(Work<Exec, T>& w, Matrix<const T, Exec> a, Matrix<const T, Exec> b, Matrix<T, Exec> c) {
  constexpr std::size_t tile = 256;
  const std::size_t d = w.d;
  for (std::size_t row = 0; row < d; row += tile) {
    const std::size_t end = std::min(row + tile, d);
    const auto rows = std::make_pair(row, end), cols = std::make_pair(std::size_t{0}, end);
    w.tools.gemm.template operator()<T, T>(Op::none, Op::none, 1, Kokkos::subview(a, rows, Kokkos::ALL),
                                           Kokkos::subview(b, Kokkos::ALL, cols), 0, Kokkos::subview(c, rows, cols));
  }
  mirror_lower<Exec, T>(w.tools.exec, c);
}

// Computes X^r for symmetric X by repeated squaring, with two scratch matrices. Returns the one that holds the result.
template <class Exec, class T>
Matrix<const T, Exec> raise(Work<Exec, T>& w, Matrix<const T, Exec> x, int r, Matrix<T, Exec> one,
                            Matrix<T, Exec> other) {
  int bit = 1;
  while (bit * 2 <= r) bit *= 2;
  Matrix<const T, Exec> power = x;
  while (bit > 1) {
    bit /= 2;
    w.multiply_by_itself(power, one);
    power = one;
    std::swap(one, other);
    if ((r & bit) == 0) continue;
    multiply_commuting<Exec, T>(w, power, x, one);
    power = one;
    std::swap(one, other);
  }
  return power;
}

// The coupled iteration (Higham, Functions of Matrices, section 7.3): with M = X^r B, T = I + (I - M) / r,
// X <- X T, M <- T^r M. M goes to I and X to B^(-1/r), quadratically in the end.
template <class Exec, class T>
struct Newton : NewtonPieces<Exec, T> {
  Newton(Work<Exec, T>& work, int order) : NewtonPieces<Exec, T>(work.tools.workspace, work.d), w(work), r(order) {}
  using NewtonPieces<Exec, T>::m, NewtonPieces<Exec, T>::x, NewtonPieces<Exec, T>::step, NewtonPieces<Exec, T>::one,
      NewtonPieces<Exec, T>::two, NewtonPieces<Exec, T>::three;
  Work<Exec, T>& w;
  int r;

  // Sets step = I - M and returns the root mean square distance of M from I.
  double distance() {
    scale_and_shift<Exec, T>(w.tools.exec, T(-1), m, T(1), step);
    return std::sqrt(w.squares(step) / static_cast<double>(w.d));
  }
  void advance() {
    scale_and_shift<Exec, T>(w.tools.exec, T(1) / static_cast<T>(r), step, T(1), step);
    multiply_commuting<Exec, T>(w, x, step, one);
    std::swap(x, one);
    const Matrix<const T, Exec> power = raise<Exec, T>(w, step, r, two, three);
    multiply_commuting<Exec, T>(w, power, m, one);
    std::swap(m, one);
  }
};

}  // namespace

template <class Exec, class T>
bool inverse_root_newton(RootTools<Exec> tools, const RootRule& rule, Matrix<const T, Exec> factor,
                         Matrix<T, Exec> root) {
  const auto frame = tools.workspace.frame();
  Work<Exec, T> w{tools, rule, factor.extent(0)};
  const int r = newton_order(rule.exponent);
  SESTINA_REQUIRE(r > 0, "exponent {} is not 1 / r", rule.exponent);
  if (w.d == 0) return true;
  Newton<Exec, T> n(w, r);
  const double norm = rule.scale * std::sqrt(w.squares(factor));
  if (!std::isfinite(norm)) return false;
  const double eps = std::max(rule.eps, 4 * rounding<T> * norm);
  if (eps == 0) return false;  // the zero matrix
  // Eigenvalues of M start in (0, (r + 1) / 2], where the iteration converges.
  const double start = (r + 1) / (2 * (norm + eps * std::sqrt(static_cast<double>(w.d))));
  scale_and_shift<Exec, T>(tools.exec, static_cast<T>(rule.scale * start), factor, static_cast<T>(eps * start), n.m);
  scale_and_shift<Exec, T>(tools.exec, T(0), factor, static_cast<T>(std::pow(start, 1.0 / r)), n.x);
  const int iterations = rule.max_iterations > 0 ? rule.max_iterations : most_iterations;
  constexpr double good = 1e-2, close = 0.1;
  double distance = n.distance(), before = 2 * distance;
  for (int done = 0; done < iterations; ++done) {
    // An iteration below `close` squares the distance; where it no longer halves it, rounding is reached.
    if (!std::isfinite(distance) || distance < 4 * rounding<T> || (before < close && distance > before / 2)) break;
    n.advance();
    before = distance;
    distance = n.distance();
  }
  if (!(distance < good)) return false;
  scale_and_shift<Exec, T>(tools.exec, T(1), n.x, T(0), root);
  return std::isfinite(w.squares(root));
}

template <class Exec, class T>
void declare_root_of_eigenvalues(Workspace<Exec>& workspace, std::size_t d) {
  const auto frame = workspace.frame();
  const AssembleScratch<Exec, T> scratch(workspace, d);
  declare<SumScratch<Exec>>(workspace, d * d);
}

namespace {

template <class Exec, class T>
void declare_eigh_root(Workspace<Exec>& workspace, std::size_t d) {
  const auto frame = workspace.frame();
  const EighPieces<Exec, T> pieces(workspace, d);
  Solver<Exec>::template declare_eigh<T>(workspace, d);
  declare_root_of_eigenvalues<Exec, T>(workspace, d);
}

template <class Exec, class T>
void declare_qr_root(Workspace<Exec>& workspace, std::size_t d) {
  const auto frame = workspace.frame();
  const QrPieces<Exec, T> pieces(workspace, d);
  declare_root_of_eigenvalues<Exec, T>(workspace, d);
  const IterationScratch<Exec> scratch(workspace);
  Solver<Exec>::template declare_qr_columns<T>(workspace, d, d, d);
  const NormsScratch<Exec> norms(workspace);
  declare<SumScratch<Exec>>(workspace, d * d);
}

template <class Exec, class T>
void declare_newton_root(Workspace<Exec>& workspace, std::size_t d) {
  const auto frame = workspace.frame();
  const NewtonPieces<Exec, T> pieces(workspace, d);
  declare<SumScratch<Exec>>(workspace, d * d);
}

}  // namespace

template <class Exec, class T>
void declare_inverse_root(Workspace<Exec>& workspace, std::size_t d) {
  declare_eigh_root<Exec, T>(workspace, d);
  declare_qr_root<Exec, T>(workspace, d);
  declare_newton_root<Exec, T>(workspace, d);
}

#define SESTINA_ROOT_TYPE(Exec, T)                                                                                   \
  template bool inverse_root_eigh<Exec, T>(RootTools<Exec>, const RootRule&, Matrix<const T, Exec>, Matrix<T, Exec>, \
                                           Matrix<T, Exec>);                                                         \
  template bool inverse_root_qr<Exec, T>(RootTools<Exec>, const RootRule&, Matrix<const T, Exec>, Matrix<T, Exec>,   \
                                         Matrix<T, Exec>);                                                           \
  template bool inverse_root_newton<Exec, T>(RootTools<Exec>, const RootRule&, Matrix<const T, Exec>,                \
                                             Matrix<T, Exec>);                                                       \
  template void root_matrix<Exec, T>(RootTools<Exec>, const RootRule&, Matrix<const T, Exec>, Matrix<T, Exec>);      \
  template bool root_of_eigenvalues<Exec, T>(RootTools<Exec>, const RootRule&, Matrix<const T, Exec>,                \
                                             Vector<const T, Exec>, Matrix<T, Exec>);                                \
  template void declare_root_of_eigenvalues<Exec, T>(Workspace<Exec>&, std::size_t);                                 \
  template void declare_inverse_root<Exec, T>(Workspace<Exec>&, std::size_t);
#define SESTINA_ROOT(Exec) SESTINA_ROOT_TYPE(Exec, float) SESTINA_ROOT_TYPE(Exec, double)
SESTINA_INSTANTIATE_LANES(SESTINA_ROOT)

}  // namespace sestina

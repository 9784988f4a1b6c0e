// What a POET-X layer tells of its rotations and of the singular values of its weight. It reads and changes nothing.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/model/poet_x.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/block_rotations.hpp"

namespace sestina {
namespace {

// Each squaring halves the exponent of what the norm from above has too much: b^(1 / (4 * 2^8)).
constexpr int squarings = 8;

// Copies n numbers from the space to the host. Fences.
template <class Exec>
std::vector<double> on_host(const Exec& exec, const Vector<double, Exec>& values) {
  std::vector<double> host(values.extent(0));
  Kokkos::deep_copy(exec, Vector<double, Host>(host.data(), host.size()), values);
  exec.fence("rotations");
  return host;
}

// Sets squares (n / b) to the sums of the squares of each block of x (n, b).
template <class Exec, class A>
void squares_of_blocks(const Exec& exec, const Matrix<A, Exec>& x, const Vector<double, Exec>& squares) {
  squares_of_chunks<Exec, A>(exec, Vector<const A, Exec>(x.data(), x.size()), x.extent(1) * x.extent(1), squares);
}

// Divides each block of x (n, b) by the root of its sum of squares; one of zeros stays.
template <class Exec, class A>
void normalise_blocks(const Exec& exec, const Vector<const double, Exec>& squares, const Matrix<A, Exec>& x) {
  const std::size_t b = x.extent(1);
  for_elements(
      "normal_blocks", exec, x.extent(0), b, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const double sum = squares(i / b);
        const A scale = sum == 0 ? A(0) : static_cast<A>(1 / Kokkos::sqrt(sum));
        for (std::size_t j = begin; j < end; ++j) x(i, j) *= scale;
      });
}

template <class Exec, class A>
void set_identities(const Exec& exec, const Matrix<A, Exec>& x) {
  const std::size_t b = x.extent(1);
  for_elements(
      "identities", exec, x.extent(0), b, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) x(i, j) = i % b == j ? A(1) : A(0);
      });
}

// Returns the largest ||Q||_2 of the blocks (n, b) of a side, from above: ||S^m||_F^(1/m) for S = Q^T Q and m = 2^8,
// which is made by squaring. Each square is divided by its Frobenius norm c_k: ||S^m||_F^(1/m) is the product of
// c_k^(2^-k).
template <class Exec, class A>
double largest_skew(const ProductSpace<Exec>& s, std::size_t n, std::size_t b, const Vector<const A, Exec>& theta) {
  auto frame = s.workspace.frame();
  Matrix<A, Exec> power = s.workspace.template take<A>(n, b), next = s.workspace.template take<A>(n, b);
  const Vector<double, Exec> squares = s.workspace.template take<double>(n / b);
  unpack_skew<Exec, A>(s.exec, theta, next);
  block_pairs<Exec, A>(s.gemm, -1, next, next, 0, power);
  std::vector<double> logarithm(n / b, 0);
  for (int k = 0; k <= squarings; ++k) {
    squares_of_blocks<Exec, A>(s.exec, power, squares);
    const std::vector<double> sums = on_host<Exec>(s.exec, squares);
    for (std::size_t i = 0; i < sums.size(); ++i) logarithm[i] += std::ldexp(0.5 * std::log(sums[i]), -k);
    if (k == squarings) break;
    normalise_blocks<Exec, A>(s.exec, squares, power);
    block_pairs<Exec, A>(s.gemm, 1, power, power, 0, next);
    std::swap(power, next);
  }
  double largest = 0;
  for (const double one : logarithm) largest = larger_or_nan(largest, std::exp(0.5 * one));
  return largest;
}

// Returns the largest ||G^T G - I||_F / sqrt(b) of the blocks of a side, as they are when rounded to E.
template <class E, class Exec>
double largest_defect(const ProductSpace<Exec>& s, const PoetOptions& options, std::size_t n,
                      const Vector<const Acc<E>, Exec>& theta) {
  using A = Acc<E>;
  auto frame = s.workspace.frame();
  const std::size_t b = options.block;
  const Matrix<A, Exec> g = s.workspace.template take<A>(n, b), off = s.workspace.template take<A>(n, b);
  const Vector<double, Exec> squares = s.workspace.template take<double>(n / b);
  if constexpr (std::is_same_v<E, A>) {
    cayley_neumann<Exec, A>(s.exec, s.gemm, s.workspace, options.fourth, theta, g);
  } else {
    const Matrix<E, Exec> rounded(reinterpret_cast<E*>(off.data()), n, b);  // E is the narrower one
    cayley_neumann<Exec, E>(s.exec, s.gemm, s.workspace, options.fourth, theta, rounded);
    convert<Exec, E, A>(s.exec, Vector<const E, Exec>(rounded.data(), n * b), Vector<A, Exec>(g.data(), n * b));
  }
  set_identities<Exec, A>(s.exec, off);
  const FirstBlock first(n, b);
  const std::size_t apart = first.rows_apart(g);
  s.gemm.template batch<A, A>(first.count, {apart, apart, apart}, Op::transpose, Op::none, -1, first.rows(g),
                              first.rows(g), 1, first.rows(off));
  squares_of_blocks<Exec, A>(s.exec, off, squares);
  double largest = 0;
  for (const double sum : on_host<Exec>(s.exec, squares))
    largest = larger_or_nan(largest, std::sqrt(sum / static_cast<double>(b)));
  return largest;
}

// Adds the singular values of a part of the weight, as roots of the eigenvalues of its smaller Gram matrix, in double:
// those below some 1e-7 of the largest one are its rounding.
template <class Exec>
void add_spectrum(const ProductSpace<Exec>& s, Solver<Exec>& solver, const Matrix<const double, Exec>& w,
                  RotationMeasure& measure) {
  auto frame = s.workspace.frame();
  const std::size_t k = std::min(w.extent(0), w.extent(1));
  const Matrix<double, Exec> gram = s.workspace.template take<double>(k, k),
                             vectors = s.workspace.template take<double>(k, k);
  const Vector<double, Exec> values = s.workspace.template take<double>(k);
  s.gemm.template symmetric<double, double>(w.extent(0) <= w.extent(1) ? Op::none : Op::transpose, 1, w, 0, gram);
  s.exec.fence("spectrum");
  const bool solved = solver.template eigh<double>(gram, vectors, values, s.workspace);
  for (const double value : on_host<Exec>(s.exec, values)) {
    const double square = solved ? std::max(value, 0.0) : std::nan("");
    measure.add({.sigma_max = std::sqrt(square), .sigma_min = std::sqrt(square), .squares = square, .count = 1});
  }
}

// The parts of a weight (out, in) that keep their singular values, each (rows, cols).
struct SpectrumParts {
  std::size_t down, across, rows, cols;
  SpectrumParts(const ShardedSides& shards, std::size_t out, std::size_t in)
      : down(static_cast<std::size_t>(shards.out)),
        across(static_cast<std::size_t>(shards.in)),
        rows(out / down),
        cols(in / across) {}
};

}  // namespace

template <class Exec>
void declare_poet_measure(Workspace<Exec>& workspace, const LinearOptions& linear, const FormShape& shape,
                          TensorCut cut, RotationLook look) {
  const PoetOptions options = poet_options(linear);
  const std::size_t b = options.block, wide = options.turned(std::max(shape.out, shape.in));
  const std::size_t dense = shape.out * shape.in;
  {
    auto frame = workspace.frame();
    const int pieces = look == RotationLook::norm ? 2 : 6;
    for (int piece = 0; piece < pieces; ++piece) workspace.template take<std::byte>(wide * b * shape.accumulate);
    workspace.template take<double>(wide / b);
  }
  if (look == RotationLook::norm) return;
  auto frame = workspace.frame();
  workspace.template take<std::byte>(dense * shape.accumulate);
  {
    auto inner = workspace.frame();
    workspace.template take<std::byte>(find_weight_form(linear)->scratch(linear, shape).merge);
  }
  workspace.template take<double>(dense);
  const SpectrumParts parts(sharded_sides(linear, cut), shape.out, shape.in);
  const std::size_t k = std::min(parts.rows, parts.cols);
  workspace.template take<double>(k * k);
  workspace.template take<double>(k * k);
  workspace.template take<double>(k);
  Solver<Exec>::template declare_eigh<double>(workspace, k);
}

template <class Exec, class T>
double poet_largest_rotation(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w) {
  using A = Acc<T>;
  const auto largest = [&](const Vector<const A, Exec>& theta) {
    return largest_skew<Exec, A>(s, options.turned_by(theta.extent(0)), options.block, theta);
  };
  return larger_or_nan(largest(w.rotation_out), largest(w.rotation_in));
}

template <class Exec, class T>
RotationMeasure poet_measure(const ProductSpace<Exec>& s, Solver<Exec>& solver, const PoetOptions& options,
                             const ShardedSides& shards, const PoetWeight<Exec, T>& w) {
  using A = Acc<T>;
  RotationMeasure measure;
  for (const bool output : {true, false}) {
    const Vector<const A, Exec> theta = output ? w.rotation_out : w.rotation_in;
    const std::size_t n = options.turned_by(theta.extent(0));
    RotationMeasure side;
    side.largest_q = largest_skew<Exec, A>(s, n, options.block, theta);
    side.defect = largest_defect<A, Exec>(s, options, n, theta);
    side.applied_defect = std::is_same_v<T, A> ? side.defect : largest_defect<T, Exec>(s, options, n, theta);
    measure.add(side);
  }
  auto frame = s.workspace.frame();
  const Matrix<A, Exec> dense = s.workspace.template take<A>(w.rows(), w.cols());
  poet_effective<Exec, T>(s, options, w, dense);
  const Matrix<double, Exec> wide = s.workspace.template take<double>(w.rows(), w.cols());
  convert<Exec, A, double>(s.exec, Vector<const A, Exec>(dense.data(), dense.size()),
                           Vector<double, Exec>(wide.data(), wide.size()));
  const SpectrumParts parts(shards, w.rows(), w.cols());
  for (std::size_t i = 0; i < parts.down; ++i)
    for (std::size_t j = 0; j < parts.across; ++j)
      add_spectrum<Exec>(s, solver,
                         Kokkos::subview(wide, std::pair(i * parts.rows, (i + 1) * parts.rows),
                                         std::pair(j * parts.cols, (j + 1) * parts.cols)),
                         measure);
  return measure;
}

#define SESTINA_POET_MEASURE_SPACE(Exec)                                                                        \
  template void declare_poet_measure<Exec>(Workspace<Exec>&, const LinearOptions&, const FormShape&, TensorCut, \
                                           RotationLook);
SESTINA_INSTANTIATE_SPACES(SESTINA_POET_MEASURE_SPACE)
#define SESTINA_POET_MEASURE(Exec, T)                                                                          \
  template double poet_largest_rotation<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&,                \
                                                 const PoetWeight<Exec, T>&);                                  \
  template RotationMeasure poet_measure<Exec, T>(const ProductSpace<Exec>&, Solver<Exec>&, const PoetOptions&, \
                                                 const ShardedSides&, const PoetWeight<Exec, T>&);
SESTINA_INSTANTIATE(SESTINA_POET_MEASURE)

}  // namespace sestina

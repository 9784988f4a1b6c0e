#include "kernels/optimizer/newton_schulz.hpp"

#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

// Sets inverse(0) to the factor by which u is multiplied, from the squares of all shards.
template <class Space>
void sum_norm(const Space& exec, const NewtonSchulz& ns, Vector<const double, Space> squares, bool counted,
              const ShardSums<Space>& sums, Vector<double, Space> total, Vector<float, Space> inverse) {
  sum_all(
      "ns_shard_norm", exec, squares.extent(0), KOKKOS_LAMBDA(std::size_t i) { return squares(i); },
      KOKKOS_LAMBDA(double sum) { total(0) = counted ? sum : 0.0; });
  sums.norm(total);
  const double eps = ns.eps;
  const bool add = ns.norm == NewtonSchulzNorm::add;
  Kokkos::parallel_for(
      "ns_inverse_norm", Kokkos::RangePolicy<Space>(exec, 0, 1),
      KOKKOS_LAMBDA(std::size_t) { inverse(0) = inverse_norm(total(0), eps, add); });
}

// Sets x = inverse(0) u, rounded.
template <class T, class Space>
void scale_shard(const Space& exec, const Blend<Space>& u, Vector<const float, Space> inverse, Matrix<T, Space> x) {
  constexpr std::size_t length = is_host<Space> ? 8192 : 1;
  const std::size_t n = x.size();
  const float *first = u.x.data(), *second = u.y.data();
  const float p = u.p, q = u.q;
  T* to = x.data();
  Kokkos::parallel_for(
      "ns_shard_scale", Kokkos::RangePolicy<Space>(exec, 0, (n + length - 1) / length),
      KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t at = piece * length, count = Kokkos::min(length, n - at);
        scaled_blend(count, inverse(0), p, p == 0 ? nullptr : first + at, q, second + at, to + at);
      });
}

// Sums the Gram matrix of all shards, times gram_factor. It is rounded only once: what is sent is in float.
template <class T, class Space>
void sum_gram(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step, CutSide cut, Matrix<const T, Space> x,
              bool counted, const ShardSums<Space>& sums, Matrix<float, Space> whole, Matrix<T, Space> rounded) {
  const Vector<float, Space> elements(whole.data(), whole.size());
  if (counted)
    gemm.template symmetric<T, float>(cut == CutSide::rows ? Op::transpose : Op::none, gram_factor(step), x, 0, whole);
  else
    Kokkos::deep_copy(exec, elements, 0.0f);
  sums.gram(elements);
  if constexpr (!std::is_same_v<T, float>)
    convert<Space, float, T>(exec, elements, Vector<T, Space>(rounded.data(), rounded.size()));
}

// Sets rows [begin, end) of p to those of a I + b A + c A^2, from gram_factor A.
template <class T, class Space>
void polynomial_rows(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step, Matrix<const T, Space> gram,
                     std::size_t begin, std::size_t end, Matrix<T, Space> p) {
  const std::size_t side = gram.extent(0), offset = begin * side;
  const Matrix<const T, Space> own(gram.data() + offset, end - begin, side);
  const Matrix<T, Space> rows(p.data() + offset, end - begin, side);
  copy_gram<T>(exec, own, rows);
  const float a = static_cast<float>(step.a), b = static_cast<float>(step.b), c = static_cast<float>(step.c);
  if (step.c != 0) gemm.template operator()<T, T>(Op::none, Op::none, c, own, gram, b, rows);
  T* const diagonal = rows.data() + begin;
  Kokkos::parallel_for(
      "ns_shard_diagonal", Kokkos::RangePolicy<Space>(exec, 0, end - begin), KOKKOS_LAMBDA(std::size_t i) {
        T& x = diagonal[i * (side + 1)];
        x = T(static_cast<float>(x) + a);
      });
}

// Returns the polynomial of a step, of which each rank forms its rows where the sums say so.
template <class T, class Space>
Matrix<const T, Space> shared_polynomial(const Space& exec, Gemm<Space>& gemm, const NewtonSchulzStep& step,
                                         const ShardSums<Space>& sums, Matrix<T, Space> gram, Matrix<T, Space> square) {
  if (sums.squarers == 1) return step_polynomial<T>(exec, gemm, step, gram, square);
  const std::size_t side = gram.extent(0);
  const auto first = [&](std::size_t rank) { return side * rank / sums.squarers; };
  polynomial_rows<T, Space>(exec, gemm, step, gram, first(sums.squarer), first(sums.squarer + 1), square);
  if constexpr (std::is_same_v<T, float>)
    sums.rows_float(square);
  else
    sums.rows_bf16(square);
  return square;
}

}  // namespace

template <class T, class Space>
Matrix<const T, Space> newton_schulz_shard(const Space& exec, Gemm<Space>& gemm, Workspace<Space>& workspace,
                                           const NewtonSchulz& ns, const Blend<Space>& u, std::size_t rows,
                                           std::size_t cols, CutSide cut, Vector<const double, Space> squares,
                                           bool counted, const ShardSums<Space>& sums) {
  SESTINA_REQUIRE(u.y.extent(0) == rows * cols && (u.p == 0 || u.x.extent(0) == rows * cols) &&
                      squares.extent(0) == chunk_count(rows * cols),
                  "shard {} x {}: vectors of {} and {}, {} chunk sums", rows, cols, u.x.extent(0), u.y.extent(0),
                  squares.extent(0));
  const NewtonSchulzShardScratch<T, Space> scratch(workspace, rows, cols, cut);
  Matrix<T, Space> x = scratch.x, y = scratch.y;
  sum_norm(exec, ns, squares, counted, sums, scratch.total, scratch.inverse);
  scale_shard<T, Space>(exec, u, scratch.inverse, x);
  for (const NewtonSchulzStep& step : ns.steps) {
    sum_gram<T, Space>(exec, gemm, step, cut, x, counted, sums, scratch.whole, scratch.gram);
    const Matrix<const T, Space> p = shared_polynomial<T, Space>(exec, gemm, step, sums, scratch.gram, scratch.square);
    if (cut == CutSide::rows)
      gemm.template operator()<T, T>(Op::none, Op::none, 1, x, p, 0, y);
    else
      gemm.template operator()<T, T>(Op::none, Op::none, 1, p, x, 0, y);
    std::swap(x, y);
  }
  return x;
}

#define SESTINA_NEWTON_SCHULZ_SHARD(Space, T)                                                               \
  template Matrix<const T, Space> newton_schulz_shard<T, Space>(                                            \
      const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&, const Blend<Space>&, std::size_t, \
      std::size_t, CutSide, Vector<const double, Space>, bool, const ShardSums<Space>&);
#define SESTINA_NEWTON_SCHULZ_SHARDS(Space) \
  SESTINA_NEWTON_SCHULZ_SHARD(Space, float) \
  SESTINA_NEWTON_SCHULZ_SHARD(Space, bf16)
SESTINA_INSTANTIATE_SPACES(SESTINA_NEWTON_SCHULZ_SHARDS)

}  // namespace sestina

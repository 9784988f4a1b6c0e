#include "kernels/optimizer/batch/soap_muon_batch.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {
namespace {

KOKKOS_INLINE_FUNCTION void divide_by_moment_range(float rate, float eps, std::size_t n, float* __restrict v,
                                                   float* __restrict p) {
  for (std::size_t i = 0; i < n; ++i) {
    v[i] += rate * (p[i] * p[i] - v[i]);
    p[i] /= Kokkos::max(Kokkos::sqrt(v[i]), eps);
  }
}
// Returns the factor that gives a vector of this norm the norm whose square is given; zero stays zero.
KOKKOS_INLINE_FUNCTION float matching_factor(float own, double square) {
  return own > 0 ? static_cast<float>(Kokkos::sqrt(square) / own) : 1.0f;
}

}  // namespace

template <class Space>
void form_blend(const Space& exec, const Blend<Space>& u, Vector<float, Space> x) {
  const float *first = u.x.data(), *second = u.y.data();
  const float p = u.p, q = u.q;
  float* to = x.data();
  for_elements(
      "form_blend", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        scaled_blend(end - begin, 1.0f, p, p == 0 ? nullptr : first + begin, q, second + begin, to + begin);
      });
}

template <class Space>
void divide_by_moment(const Space& exec, double beta2, double eps, Vector<float, Space> v, Vector<float, Space> p) {
  SESTINA_REQUIRE(v.extent(0) == p.extent(0), "moment of {}, direction of {}", v.extent(0), p.extent(0));
  const auto rate = static_cast<float>(1 - beta2), least = static_cast<float>(eps);
  float *moment = v.data(), *direction = p.data();
  for_elements(
      "divide_moment", exec, 1, p.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        divide_by_moment_range(rate, least, end - begin, moment + begin, direction + begin);
      });
}

template <class Space>
void match_norm(const Space& exec, Vector<const double, Space> squares, const MatchNormScratch<Space>& scratch,
                Vector<float, Space> d) {
  float* x = d.data();
  const std::size_t n = d.extent(0);
  const Vector<double, Space> own = scratch.squares.chunks;
  const Vector<float, Space> factor = scratch.factor;
  sum_pieces(
      "match_squares", exec, n, reduce_chunk, own, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) { return square(x[begin + i]); });
      });
  // The factor is the root of the ratio of two sums: the one that d has is kept in it until the other one is known.
  sum_all(
      "match_own", exec, own.extent(0), KOKKOS_LAMBDA(std::size_t i) { return own(i); },
      KOKKOS_LAMBDA(double sum) { factor(0) = static_cast<float>(Kokkos::sqrt(sum)); });
  sum_all(
      "match_other", exec, squares.extent(0), KOKKOS_LAMBDA(std::size_t i) { return squares(i); },
      KOKKOS_LAMBDA(double sum) { factor(0) = matching_factor(factor(0), sum); });
  for_elements(
      "match_scale", exec, 1, n, KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x[i] *= factor(0);
      });
}

template <class Space>
void form_blends(const Space& exec, const MomentumStep& step, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                 std::size_t stack) {
  const float p = step.p, q = step.q;
  float* const to = stacks[stack];
  for_flat_pieces(
      "form_blends", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        scaled_blend(count, 1.0f, p, of.gradient + at, q, of.momentum + at, to + of.place + at);
      });
}

template <class Space>
void divide_by_moments(const Space& exec, double beta2, double eps, const FlatBatch<Space>& batch,
                       const FlatStacks& stacks, std::size_t stack) {
  const auto rate = static_cast<float>(1 - beta2), least = static_cast<float>(eps);
  float* const direction = stacks[stack];
  for_flat_pieces(
      "divide_moments", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        divide_by_moment_range(rate, least, count, of.second_moment + at, direction + of.place + at);
      });
}

template <class Space>
void match_norms(const Space& exec, Vector<const double, Space> squares, const MatchNormsScratch<Space>& scratch,
                 const FlatBatch<Space>& batch, const FlatStacks& stacks) {
  if (batch.matrices.empty()) return;
  const Vector<float, Space> factors = scratch.factors;
  sum_table_pieces<flat_piece, Space, FlatMatrix>(
      "match_squares", exec, batch.table, scratch.squares,
      KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        const float* const x = stacks[of.stack] + of.place + at;
        return lane_sum(count, [=](std::size_t i) { return square(x[i]); });
      });
  total_entries<2, Space, FlatMatrix>(
      "match_factors", exec, batch.table, {scratch.squares.data(), squares.data()},
      KOKKOS_LAMBDA(const FlatMatrix& of) { return of.pieces(); },
      KOKKOS_LAMBDA(std::size_t i, const Kokkos::Array<double, 2>& totals) {
        factors(i) = matching_factor(static_cast<float>(Kokkos::sqrt(totals[0])), totals[1]);
      });
  for_flat_pieces(
      "match_scale", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        float* const x = stacks[of.stack] + of.place + at;
        for (std::size_t i = 0; i < count; ++i) x[i] *= factors(of.number);
      });
}

#define SESTINA_SOAP_MUON_BATCH(Space)                                                                             \
  template void form_blend<Space>(const Space&, const Blend<Space>&, Vector<float, Space>);                        \
  template void divide_by_moment<Space>(const Space&, double, double, Vector<float, Space>, Vector<float, Space>); \
  template void match_norm<Space>(const Space&, Vector<const double, Space>, const MatchNormScratch<Space>&,       \
                                  Vector<float, Space>);                                                           \
  template void form_blends<Space>(const Space&, const MomentumStep&, const FlatBatch<Space>&, const FlatStacks&,  \
                                   std::size_t);                                                                   \
  template void divide_by_moments<Space>(const Space&, double, double, const FlatBatch<Space>&, const FlatStacks&, \
                                         std::size_t);                                                             \
  template void match_norms<Space>(const Space&, Vector<const double, Space>, const MatchNormsScratch<Space>&,     \
                                   const FlatBatch<Space>&, const FlatStacks&);
SESTINA_INSTANTIATE_LANES(SESTINA_SOAP_MUON_BATCH)

}  // namespace sestina

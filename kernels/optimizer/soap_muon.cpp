#include "kernels/optimizer/soap_muon.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {
namespace {

KOKKOS_INLINE_FUNCTION void divide_piece(float rate, float eps, std::size_t n, float* __restrict v,
                                         float* __restrict p) {
  for (std::size_t i = 0; i < n; ++i) {
    v[i] += rate * (p[i] * p[i] - v[i]);
    p[i] /= Kokkos::max(Kokkos::sqrt(v[i]), eps);
  }
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
        divide_piece(rate, least, end - begin, moment + begin, direction + begin);
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
      KOKKOS_LAMBDA(double sum) {
        factor(0) = factor(0) > 0 ? static_cast<float>(Kokkos::sqrt(sum) / factor(0)) : 1.0f;
      });
  for_elements(
      "match_scale", exec, 1, n, KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x[i] *= factor(0);
      });
}

#define SESTINA_SOAP_MUON(Space)                                                                                   \
  template void form_blend<Space>(const Space&, const Blend<Space>&, Vector<float, Space>);                        \
  template void divide_by_moment<Space>(const Space&, double, double, Vector<float, Space>, Vector<float, Space>); \
  template void match_norm<Space>(const Space&, Vector<const double, Space>, const MatchNormScratch<Space>&,       \
                                  Vector<float, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_SOAP_MUON)

}  // namespace sestina

#include "kernels/model/router.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/rows.hpp"

namespace sestina {

// This is added to the sum of a token's chosen scores, all of which may be 0 where a bias chose them (DeepSeek-V3 adds
// the same number). Where the largest score is among them it changes no bit.
constexpr double least_sum = 1e-20;

template <class Exec, class A>
void choose_experts(const Exec& exec, const RouterRule& rule, Vector<const A, Exec> bias, Matrix<A, Exec> logits,
                    Matrix<std::int32_t, Exec> chosen, Matrix<A, Exec> weight, Vector<A, Exec> log_sums) {
  const int experts = static_cast<int>(logits.extent(1)), k = static_cast<int>(chosen.extent(1));
  const bool normalised = rule.normalised, by_sigmoid = rule.sigmoid, biased = bias.size() > 0;
  for_rows(
      "choose_experts", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        A* p = row_of(logits, row);
        std::int32_t* found = row_of(chosen, row);
        const A largest = max_over<A>(lane, experts, [&](int e) { return p[e]; });
        const A sum = sum_over<A>(lane, experts, [&](int e) { return exp_below_89(p[e] - largest); });
        const A scale = A(1) / sum;
        sync(lane);
        each(lane, experts, [&](int e) { p[e] = by_sigmoid ? sigmoid(p[e]) : exp_below_89(p[e] - largest) * scale; });
        each(lane, k, [&](int j) { found[j] = j; });  // numbers of experts even where no value is a number
        sync(lane);
        const auto rank_of = [&](int e) { return biased ? p[e] + bias(e) : p[e]; };
        each(lane, experts, [&](int e) {  // the place of an expert is the number of those before it
          const A own = rank_of(e);
          int before = 0;
          for (int other = 0; other < experts; ++other) {
            const A one = rank_of(other);
            before += one > own || (one == own && other < e) ? 1 : 0;
          }
          if (before < k) found[before] = e;
        });
        sync(lane);
        A total = A(least_sum);
        for (int j = 0; j < k; ++j) total += p[found[j]];
        A* out = row_of(weight, row);
        each(lane, k, [&](int j) { out[j] = normalised ? p[found[j]] / total : p[found[j]]; });
        if (is_first(lane)) log_sums(row) = largest + Kokkos::log(sum);
      });
}

template <class Exec, class T>
void choose_experts_backward(const Exec& exec, const RouterRule& rule, const Routed<Exec, Acc<T>>& routed,
                             Vector<const Acc<T>, Exec> d_weight, Matrix<T, Exec> dlogits) {
  using A = Acc<T>;
  const int experts = static_cast<int>(dlogits.extent(1)), k = static_cast<int>(routed.chosen.extent(1));
  const bool normalised = rule.normalised, by_sigmoid = rule.sigmoid;
  const A balance = A(rule.balance * experts / static_cast<double>(dlogits.extent(0))), size = A(2 * rule.size);
  for_rows(
      "router_back", exec, dlogits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A *p = row_of(routed.scores, row), *w = row_of(routed.weight, row);
        const std::int32_t *found = row_of(routed.chosen, row), *at = row_of(routed.place, row);
        T* out = row_of(dlogits, row);
        // With weights w = p / s, s the sum over the chosen: dp = (dw - sum dw w) / s. Biases are not in it.
        A total = 1, along = 0;
        if (normalised) {
          total = A(least_sum);
          for (int j = 0; j < k; ++j) {
            total += p[found[j]];
            along += d_weight(at[j]) * w[j];
          }
        }
        const auto d_score = [&](int e) {
          A d = balance * A(routed.counts(e));
          for (int j = 0; j < k; ++j) d += found[j] == e ? (d_weight(at[j]) - along) / total : A(0);
          return d;
        };
        if (by_sigmoid) return each(lane, experts, [&](int e) { out[e] = T(p[e] * (1 - p[e]) * d_score(e)); });
        const A mean = sum_over<A>(lane, experts, [&](int e) { return p[e] * d_score(e); });
        const A of_size = size * routed.log_sums(row);
        each(lane, experts, [&](int e) { out[e] = T(p[e] * (d_score(e) - mean + of_size)); });
      });
}

#define SESTINA_CHOOSE(Exec)                                                                                         \
  template void choose_experts<Exec, float>(const Exec&, const RouterRule&, Vector<const float, Exec>,               \
                                            Matrix<float, Exec>, Matrix<std::int32_t, Exec>, Matrix<float, Exec>,    \
                                            Vector<float, Exec>);                                                    \
  template void choose_experts<Exec, double>(const Exec&, const RouterRule&, Vector<const double, Exec>,             \
                                             Matrix<double, Exec>, Matrix<std::int32_t, Exec>, Matrix<double, Exec>, \
                                             Vector<double, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_CHOOSE)
#define SESTINA_ROUTER(Exec, T)                                                                               \
  template void choose_experts_backward<Exec, T>(const Exec&, const RouterRule&, const Routed<Exec, Acc<T>>&, \
                                                 Vector<const Acc<T>, Exec>, Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_ROUTER)

}  // namespace sestina

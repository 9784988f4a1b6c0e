#include "kernels/optimizer/element_rules.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

double warm_alpha(double alpha, std::int64_t t, std::int64_t warmup) {
  return t >= warmup ? alpha : alpha * static_cast<double>(t) / static_cast<double>(warmup);
}

double warm_beta3(double beta1, double beta3, std::int64_t t, std::int64_t warmup) {
  if (t >= warmup) return beta3;
  const double done = static_cast<double>(t) / static_cast<double>(warmup);
  return std::min(beta3, std::exp(1 / ((1 - done) / std::log(beta1) + done / std::log(beta3))));
}

// The sum of squares of w is in closed form, times warmup^2.
double average_share(std::int64_t t, std::int64_t warmup) {
  const auto rise = static_cast<double>(std::max<std::int64_t>(warmup, 1));
  const double now = std::min(static_cast<double>(t), rise), after = static_cast<double>(t) - now;
  return now * now / (now * (now + 1) * (2 * now + 1) / 6 + after * rise * rise);
}

namespace {

// The decay of an element with update u.
template <class S>
struct ElementDecay {
  S keep;
  bool cautious;
  explicit ElementDecay(const ElementStep& s) : keep(S(1 - s.lr * s.weight_decay)), cautious(s.cautious) {}
  KOKKOS_INLINE_FUNCTION S operator()(S weight, S u) const {
    return cautious && u * weight < S(0) ? weight : keep * weight;
  }
};

// Each rule returns the new weight of an element of gradient `raw`, whose place in the fields of state is i.
template <class S>
using Fields = S* const*;

// A gradient that is no number reaches the weight: it has no sign.
template <class S>
struct LionRule {
  ElementDecay<S> decay;
  S gradient, step, one_minus_beta1, one_minus_beta2;

  explicit LionRule(const LionStep& s)
      : decay(s),
        gradient(S(s.gradient_scale)),
        step(S(s.lr)),
        one_minus_beta1(S(1 - s.beta1)),
        one_minus_beta2(S(1 - s.beta2)) {}
  KOKKOS_INLINE_FUNCTION S operator()(std::size_t i, S raw, S weight, Fields<S> state) const {
    S& m = state[0][i];
    const S g = gradient * raw, mixed = m + one_minus_beta1 * (g - m);
    const S u = mixed > S(0) ? S(1) : mixed < S(0) ? S(-1) : mixed;
    m += one_minus_beta2 * (g - m);
    return decay(weight, u) - step * u;
  }
};

template <class S>
struct AdEMAMixRule {
  ElementDecay<S> decay;
  S gradient, step, one_minus_beta1, one_minus_beta2, one_minus_beta3, inv_bias1, inv_sqrt_bias2, alpha, eps;

  explicit AdEMAMixRule(const AdEMAMixStep& s)
      : decay(s),
        gradient(S(s.gradient_scale)),
        step(S(s.lr)),
        one_minus_beta1(S(1 - s.beta1)),
        one_minus_beta2(S(1 - s.beta2)),
        one_minus_beta3(S(1 - s.beta3)),
        inv_bias1(S(1 / s.bias_correction1)),
        inv_sqrt_bias2(S(1 / std::sqrt(s.bias_correction2))),
        alpha(S(s.alpha)),
        eps(S(s.eps)) {}
  KOKKOS_INLINE_FUNCTION S operator()(std::size_t i, S raw, S weight, Fields<S> state) const {
    S &m = state[0][i], &slow = state[1][i], &v = state[2][i];
    const S g = gradient * raw;
    m += one_minus_beta1 * (g - m);
    slow += one_minus_beta3 * (g - slow);
    v += one_minus_beta2 * (g * g - v);
    const S u = (inv_bias1 * m + alpha * slow) / (Kokkos::sqrt(v) * inv_sqrt_bias2 + eps);
    return decay(weight, u) - step * u;
  }
};

template <class S>
struct ScheduleFreeRule {
  S gradient, step, one_minus_beta1, inv_one_minus_beta1, one_minus_beta2, inv_sqrt_bias2, eps, weight_decay, share;
  bool cautious;

  explicit ScheduleFreeRule(const ScheduleFreeStep& s)
      : gradient(S(s.gradient_scale)),
        step(S(s.lr)),
        one_minus_beta1(S(1 - s.beta1)),
        inv_one_minus_beta1(S(1 / (1 - s.beta1))),
        one_minus_beta2(S(1 - s.beta2)),
        inv_sqrt_bias2(S(1 / std::sqrt(s.bias_correction2))),
        eps(S(s.eps)),
        weight_decay(S(s.weight_decay)),
        share(S(s.share)),
        cautious(s.cautious) {}
  KOKKOS_INLINE_FUNCTION S operator()(std::size_t i, S raw, S y, Fields<S> state) const {
    S &average = state[0][i], &v = state[1][i];
    const S g = gradient * raw;
    v += one_minus_beta2 * (g * g - v);
    const S u = g / (Kokkos::sqrt(v) * inv_sqrt_bias2 + eps);
    const S pull = cautious && u * y < S(0) ? u : u + weight_decay * y;
    const S x = average, z = x + inv_one_minus_beta1 * (y - x) - step * pull;
    const S next = x + share * (z - x);
    average = next;
    return next + one_minus_beta1 * (z - next);
  }
};

// Runs a rule over a run or a table of them. The label has at most 15 characters.
template <class T, class Exec, class Rule, class Runs>
void run_rule(const char* label, const Exec& exec, const Rule& rule, double* nonfinite, const Runs& runs) {
  for_elements_of<T>(
      label, exec, runs, KOKKOS_LAMBDA(const ElementRun<T>& of, std::size_t at, std::size_t count) {
        for (std::size_t i = at; i < at + count; ++i) {
          const Acc<T> updated = rule(i, of.gradient[i], of.master[i], of.state);
          of.master[i] = updated;
          if (of.weight != nullptr) of.weight[i] = T(updated);
        }
        flag_nonfinite(count, of.master + at, nonfinite);
      });
}

}  // namespace

template <class Exec, class T, class Runs>
void lion(const Exec& exec, const LionStep& s, const Runs& of) {
  run_rule<T>("lion", exec, LionRule<Acc<T>>(s), s.nonfinite, of);
}

template <class Exec, class T, class Runs>
void ademamix(const Exec& exec, const AdEMAMixStep& s, const Runs& of) {
  run_rule<T>("ademamix", exec, AdEMAMixRule<Acc<T>>(s), s.nonfinite, of);
}

template <class Exec, class T, class Runs>
void schedule_free(const Exec& exec, const ScheduleFreeStep& s, const Runs& of) {
  run_rule<T>("schedule_free", exec, ScheduleFreeRule<Acc<T>>(s), s.nonfinite, of);
}

#define SESTINA_RULES_OF(Exec, T, ...)                                                                \
  template void lion<Exec, T, __VA_ARGS__>(const Exec&, const LionStep&, const __VA_ARGS__&);         \
  template void ademamix<Exec, T, __VA_ARGS__>(const Exec&, const AdEMAMixStep&, const __VA_ARGS__&); \
  template void schedule_free<Exec, T, __VA_ARGS__>(const Exec&, const ScheduleFreeStep&, const __VA_ARGS__&);
#define SESTINA_ELEMENT_RULES(Exec, T) \
  SESTINA_RULES_OF(Exec, T, ElementRun<T>) SESTINA_RULES_OF(Exec, T, ElementRuns<Exec, T>)
SESTINA_INSTANTIATE(SESTINA_ELEMENT_RULES)
SESTINA_ELEMENT_RULES(Serial, float)

template <class Exec, class A>
void follow_weights(const Exec& exec, Vector<const A, Exec> weights, double tau, Vector<A, Exec> mean) {
  SESTINA_REQUIRE(weights.extent(0) == mean.extent(0), "{} weights, a mean of {}", weights.extent(0), mean.extent(0));
  const A share = A(1 / tau);
  for_elements(
      "follow_weights", exec, 1, mean.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) mean(i) += share * (weights(i) - mean(i));
      });
}

template <class Exec, class A>
void look_ahead(const Exec& exec, Vector<A, Exec> weights, double share, Vector<const A, Exec> mean,
                Vector<A, Exec> kept) {
  const std::size_t n = weights.extent(0);
  SESTINA_REQUIRE(mean.extent(0) == n && kept.extent(0) == n, "{} weights, {} and {} others", n, mean.extent(0),
                  kept.extent(0));
  const A part = A(share);
  for_elements(
      "look_ahead", exec, 1, n, KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          kept(i) = weights(i);
          weights(i) += part * mean(i);
        }
      });
}

template <class Exec, class A>
void follow_displacements(const Exec& exec, Vector<const A, Exec> weights, Vector<const A, Exec> kept, double ema,
                          Vector<A, Exec> mean) {
  const std::size_t n = weights.extent(0);
  SESTINA_REQUIRE(mean.extent(0) == n && kept.extent(0) == n, "{} weights, {} and {} others", n, mean.extent(0),
                  kept.extent(0));
  const A keep = A(ema), share = A(1 - ema);
  for_elements(
      "follow_displacements", exec, 1, n, KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) mean(i) = keep * mean(i) + share * (weights(i) - kept(i));
      });
}

template <class Exec, class A>
void swap_values(const Exec& exec, Vector<A, Exec> x, Vector<A, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == y.extent(0), "{} and {} values", x.extent(0), y.extent(0));
  for_elements(
      "swap_values", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          const A kept = x(i);
          x(i) = y(i);
          y(i) = kept;
        }
      });
}

#define SESTINA_FOLLOW_WEIGHTS(Exec) \
  template void follow_weights<Exec, float>(const Exec&, Vector<const float, Exec>, double, Vector<float, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_FOLLOW_WEIGHTS)
#define SESTINA_LOOK_AHEAD(Exec)                                                                                     \
  template void look_ahead<Exec, float>(const Exec&, Vector<float, Exec>, double, Vector<const float, Exec>,         \
                                        Vector<float, Exec>);                                                        \
  template void follow_displacements<Exec, float>(const Exec&, Vector<const float, Exec>, Vector<const float, Exec>, \
                                                  double, Vector<float, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_LOOK_AHEAD)
#define SESTINA_SWAP_VALUES(Exec, A) template void swap_values<Exec, A>(const Exec&, Vector<A, Exec>, Vector<A, Exec>);
#define SESTINA_SWAP_SPACES(Exec) SESTINA_SWAP_VALUES(Exec, float) SESTINA_SWAP_VALUES(Exec, double)
SESTINA_INSTANTIATE_SPACES(SESTINA_SWAP_SPACES)
SESTINA_SWAP_VALUES(Serial, float)

}  // namespace sestina

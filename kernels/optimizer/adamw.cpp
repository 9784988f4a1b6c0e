#include "kernels/optimizer/adamw.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/table_passes.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// The constants of one step, in the type of the arithmetic.
template <class S>
struct Factors {
  S gradient, keep, one_minus_beta1, one_minus_beta2, step, inv_sqrt_bias2, eps;
  S gradient_part, momentum_part;

  explicit Factors(const AdamWStep& s)
      : gradient(S(s.gradient_scale)),
        keep(S(1.0 - s.lr * s.weight_decay)),
        one_minus_beta1(S(1.0 - s.beta1)),
        one_minus_beta2(S(1.0 - s.beta2)),
        step(S(s.lr / s.bias_correction1)),
        inv_sqrt_bias2(S(1.0 / Kokkos::sqrt(s.bias_correction2))),
        eps(S(s.eps)),
        gradient_part(S(s.lr * s.gradient_part)),
        momentum_part(S(s.lr * s.momentum_part)) {}
};

// The variants of the pass, each compiled by itself.
template <bool with_look_ahead, bool with_caution>
struct AdamWForm {
  static constexpr bool looks_ahead = with_look_ahead, cautious = with_caution;
};

// Updates one element and returns the new master weight.
template <class Form, class S>
KOKKOS_INLINE_FUNCTION S advance(const Factors<S>& f, S gradient, S weight, S& m, S& v) {
  const S g = f.gradient * gradient;
  m += f.one_minus_beta1 * (g - m);
  v += f.one_minus_beta2 * (g * g - v);
  if constexpr (Form::cautious) {
    const S along = Form::looks_ahead ? f.gradient_part * g + f.momentum_part * m : f.step * m;
    const S update = along / (Kokkos::sqrt(v) * f.inv_sqrt_bias2 + f.eps);
    return (update * weight < S(0) ? weight : f.keep * weight) - update;
  }
  if constexpr (Form::looks_ahead)
    return f.keep * weight - (f.gradient_part * g + f.momentum_part * m) / (Kokkos::sqrt(v) * f.inv_sqrt_bias2 + f.eps);
  return f.keep * weight - f.step * m / (Kokkos::sqrt(v) * f.inv_sqrt_bias2 + f.eps);
}

// Elements per thread at a time: on the host long enough to vectorise and to stream, short enough to balance.
template <class Exec>
constexpr std::size_t adamw_grain = is_host<Exec> ? adamw_piece : 1;

// Updates n elements in one inner loop over plain pointers, so that the compiler vectorises it. weight may be null.
template <class Form, class T, class S = Acc<T>>
KOKKOS_INLINE_FUNCTION void advance_range(const Factors<S>& f, std::size_t n, const S* __restrict gradient,
                                          S* __restrict master, S* __restrict m, S* __restrict v,
                                          T* __restrict weight) {
  if (weight == nullptr) {
    for (std::size_t i = 0; i < n; ++i) master[i] = advance<Form>(f, gradient[i], master[i], m[i], v[i]);
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    const S updated = advance<Form>(f, gradient[i], master[i], m[i], v[i]);
    master[i] = updated;
    weight[i] = T(updated);
  }
}

template <class Form, class Exec, class T>
void run(const Exec& exec, const AdamWStep& step, const Vector<const Acc<T>, Exec>& gradient,
         const Vector<Acc<T>, Exec>& master, const Vector<Acc<T>, Exec>& m, const Vector<Acc<T>, Exec>& v,
         const Vector<T, Exec>& weight) {
  const std::size_t n = gradient.extent(0);
  constexpr std::size_t length = adamw_grain<Exec>;
  const Factors<Acc<T>> f(step);
  const bool has_weight = weight.extent(0) != 0;
  double* const nonfinite = step.nonfinite;
  const Kokkos::RangePolicy<Exec> pieces(exec, 0, (n + length - 1) / length);
  Kokkos::parallel_for(
      "adamw", pieces, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t at = piece * length, count = Kokkos::min(length, n - at);
        advance_range<Form, T>(f, count, gradient.data() + at, master.data() + at, m.data() + at, v.data() + at,
                               has_weight ? weight.data() + at : nullptr);
        flag_nonfinite(count, master.data() + at, nonfinite);
      });
}

template <class Form, class Exec, class T>
void run(const Exec& exec, const AdamWStep& step, const Vector<const AdamWRun<T>, Exec>& runs, std::size_t pieces) {
  const Factors<Acc<T>> f(step);
  double* const nonfinite = step.nonfinite;
  for_pieces<adamw_piece, Exec, AdamWRun<T>>(
      "adamw", exec, runs, pieces, KOKKOS_LAMBDA(const AdamWRun<T>& of, std::size_t at, std::size_t count) {
        advance_range<Form, T>(f, count, of.gradient + at, of.master + at, of.m + at, of.v + at,
                               of.weight != nullptr ? of.weight + at : nullptr);
        flag_nonfinite(count, of.master + at, nonfinite);
      });
}

template <class Form, class Exec, class T>
void run(const Exec& exec, const AdamWStep& step, const Vector<const Acc<T>, Exec>& gradient,
         const Vector<Acc<T>, Exec>& master, const CodedMoments<Exec>& moments, const Vector<T, Exec>& weight) {
  using S = Acc<T>;
  const Factors<S> f(step);
  const bool has_weight = weight.extent(0) != 0;
  double* const nonfinite = step.nonfinite;
  update_moments<S>(
      "adamw_8bit", exec, moments, KOKKOS_LAMBDA(std::size_t at, std::size_t count, S * m, S * v) {
        advance_range<Form, T>(f, count, gradient.data() + at, master.data() + at, m, v,
                               has_weight ? weight.data() + at : nullptr);
        flag_nonfinite(count, master.data() + at, nonfinite);
      });
}

// Calls run with the form of this step.
template <class Exec, class T, class... Arguments>
void run_form(const Exec& exec, const AdamWStep& step, const Arguments&... arguments) {
  if (step.cautious && step.looks_ahead) return run<AdamWForm<true, true>, Exec, T>(exec, step, arguments...);
  if (step.cautious) return run<AdamWForm<false, true>, Exec, T>(exec, step, arguments...);
  if (step.looks_ahead) return run<AdamWForm<true, false>, Exec, T>(exec, step, arguments...);
  run<AdamWForm<false, false>, Exec, T>(exec, step, arguments...);
}

}  // namespace

template <class Exec, class T>
void adamw(const Exec& exec, const AdamWStep& step, Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master,
           Vector<Acc<T>, Exec> m, Vector<Acc<T>, Exec> v, Vector<T, Exec> weight) {
  const std::size_t n = gradient.extent(0);
  SESTINA_REQUIRE(
      master.extent(0) == n && m.extent(0) == n && v.extent(0) == n && (weight.extent(0) == n || weight.extent(0) == 0),
      "gradient of {}, master {}, m {}, v {}, weight {}", n, master.extent(0), m.extent(0), v.extent(0),
      weight.extent(0));
  run_form<Exec, T>(exec, step, gradient, master, m, v, weight);
}

template <class Exec, class T>
void adamw(const Exec& exec, const AdamWStep& step, Vector<const AdamWRun<T>, Exec> runs, std::size_t pieces) {
  if (pieces > 0) run_form<Exec, T>(exec, step, runs, pieces);
}

template <class Exec, class T>
void adamw(const Exec& exec, const AdamWStep& step, Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master,
           const CodedMoments<Exec>& moments, Vector<T, Exec> weight) {
  const std::size_t n = gradient.extent(0);
  SESTINA_REQUIRE(master.extent(0) == n && moments.m.size() == n && (weight.extent(0) == n || weight.extent(0) == 0),
                  "gradient of {}, master {}, moments {}, weight {}", n, master.extent(0), moments.m.size(),
                  weight.extent(0));
  run_form<Exec, T>(exec, step, gradient, master, moments, weight);
}

#define SESTINA_ADAMW(Exec, T)                                                                                  \
  template void adamw<Exec, T>(const Exec&, const AdamWStep&, Vector<const Acc<T>, Exec>, Vector<Acc<T>, Exec>, \
                               Vector<Acc<T>, Exec>, Vector<Acc<T>, Exec>, Vector<T, Exec>);                    \
  template void adamw<Exec, T>(const Exec&, const AdamWStep&, Vector<const AdamWRun<T>, Exec>, std::size_t);    \
  template void adamw<Exec, T>(const Exec&, const AdamWStep&, Vector<const Acc<T>, Exec>, Vector<Acc<T>, Exec>, \
                               const CodedMoments<Exec>&, Vector<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_ADAMW)
SESTINA_ADAMW(Serial, float)

}  // namespace sestina

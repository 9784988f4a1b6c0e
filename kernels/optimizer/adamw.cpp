#include "kernels/optimizer/adamw.hpp"

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

template <class Form, class Exec, class T, class Runs>
void run(const Exec& exec, const AdamWStep& step, const Runs& runs) {
  const Factors<Acc<T>> f(step);
  double* const nonfinite = step.nonfinite;
  for_elements_of<T>(
      "adamw", exec, runs, KOKKOS_LAMBDA(const ElementRun<T>& of, std::size_t at, std::size_t count) {
        advance_range<Form, T>(f, count, of.gradient + at, of.master + at, of.state[0] + at, of.state[1] + at,
                               of.weight != nullptr ? of.weight + at : nullptr);
        flag_nonfinite(count, of.master + at, nonfinite);
      });
}

// The pass over blocks of moments in 8 bits.
template <class Form, class T>
struct CodedPass {
  Factors<Acc<T>> factors;
  double* nonfinite;
  KOKKOS_INLINE_FUNCTION void operator()(const CodedRun<T>& of, std::size_t at, std::size_t count, Acc<T>* m,
                                         Acc<T>* v) const {
    advance_range<Form, T>(factors, count, of.gradient + at, of.master + at, m, v,
                           of.weight != nullptr ? of.weight + at : nullptr);
    flag_nonfinite(count, of.master + at, nonfinite);
  }
};

template <class Form, class Exec, class T>
void run(const Exec& exec, const AdamWStep& step, const CodedRun<T>& of) {
  const CodedPass<Form, T> pass{Factors<Acc<T>>(step), step.nonfinite};
  update_moments<Acc<T>>("adamw_8bit", exec, of, pass);
}

template <class Form, class Exec, class T>
void run(const Exec& exec, const AdamWStep& step, const CodedRuns<Exec, T>& runs) {
  const CodedPass<Form, T> pass{Factors<Acc<T>>(step), step.nonfinite};
  update_moments<Acc<T>>("adamw_8bit", exec, runs.block, runs.blocks, runs.table, pass);
}

}  // namespace

template <class Exec, class T, class Runs>
void adamw(const Exec& exec, const AdamWStep& step, const Runs& runs) {
  if (step.cautious && step.looks_ahead) return run<AdamWForm<true, true>, Exec, T>(exec, step, runs);
  if (step.cautious) return run<AdamWForm<false, true>, Exec, T>(exec, step, runs);
  if (step.looks_ahead) return run<AdamWForm<true, false>, Exec, T>(exec, step, runs);
  run<AdamWForm<false, false>, Exec, T>(exec, step, runs);
}

#define SESTINA_ADAMW_OF(Exec, T, ...) \
  template void adamw<Exec, T, __VA_ARGS__>(const Exec&, const AdamWStep&, const __VA_ARGS__&);
#define SESTINA_ADAMW(Exec, T)                                                           \
  SESTINA_ADAMW_OF(Exec, T, ElementRun<T>)                                               \
  SESTINA_ADAMW_OF(Exec, T, ElementRuns<Exec, T>) SESTINA_ADAMW_OF(Exec, T, CodedRun<T>) \
      SESTINA_ADAMW_OF(Exec, T, CodedRuns<Exec, T>)
SESTINA_INSTANTIATE(SESTINA_ADAMW)
SESTINA_ADAMW(Serial, float)

}  // namespace sestina

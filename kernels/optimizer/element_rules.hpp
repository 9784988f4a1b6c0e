// Elementwise rules in one fused pass each, as AdamW's (kernels/optimizer/adamw.hpp), with weight w, gradient g, and
// "w decays" for w *= 1 - lr wd before the update. With cautious decay an element decays only where the update u of its
// rule fulfils u w >= 0, so that both pull it the same way.
//
// Lion (Chen et al. 2023, arXiv 2302.06675): u = sign(lerp(m, g, 1 - beta1));  w decays;  w -= lr u;  then
//   m = lerp(m, g, 1 - beta2).
// AdEMAMix (Pagliardini et al. 2024, arXiv 2409.03137): m = lerp(m, g, 1 - beta1);  s = lerp(s, g, 1 - beta3);
//   v = lerp(v, g^2, 1 - beta2);  w decays;  w -= lr (m / bc1 + alpha s) / (sqrt(v / bc2) + eps),  bc_i = 1 - beta_i^t.
// Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682): the weights y at which gradients are taken lie between
// an
//   iterate z and its average x: y = lerp(x, z, 1 - beta1).  v = lerp(v, g^2, 1 - beta2);
//   u = g / (sqrt(v / bc2) + eps);  z -= lr (u + wd y);  x = lerp(x, z, c);  y as above.
//   Stored are y and x, from which z = x + (y - x) / (1 - beta1) follows; they are equal before the first update.
#pragma once
#include <cstdint>

#include "kernels/optimizer/adamw.hpp"

namespace sestina {

// The numbers of a step that all of these rules have.
struct ElementStep {
  double lr = 0, weight_decay = 0;
  double gradient_scale = 1;  // clipping; g is multiplied by it
  bool cautious = false;
  double* nonfinite = nullptr;  // see kernels/optimizer/matrix_update.hpp
};
struct LionStep : ElementStep {
  double beta1 = 0.95, beta2 = 0.98;
};
struct AdEMAMixStep : ElementStep {
  double beta1 = 0.9, beta2 = 0.999, beta3 = 0.9999, alpha = 8, eps = 1e-8;
  double bias_correction1 = 1, bias_correction2 = 1;  // bc1 and bc2 above
};
struct ScheduleFreeStep : ElementStep {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double bias_correction2 = 1;
  double share = 1;  // c above
};

// Return alpha and beta3 of update t (from 1) of a warm-up of so many updates (0: none), as the paper of AdEMAMix has
// them: alpha rises in a line, and so does 1 / log beta3, from beta1.
double warm_alpha(double alpha, std::int64_t t, std::int64_t warmup);
double warm_beta3(double beta1, double beta3, std::int64_t t, std::int64_t warmup);
// Returns c of update t (from 1): w_t^2 / (w_1^2 + ... + w_t^2), where w_t = min(1, t / warmup) is the largest factor
// of the learning rate so far.
double average_share(std::int64_t t, std::int64_t warmup);

// These update master weights and the state of their rule from gradients, all in Acc<T>, of an ElementRun<T>, or of
// ElementRuns<Exec, T> in one launch. Fields of state: Lion's m; AdEMAMix's m, s and v; Schedule-Free AdamW's x and v.
template <class Exec, class T, class Runs>
void lion(const Exec&, const LionStep&, const Runs&);
template <class Exec, class T, class Runs>
void ademamix(const Exec&, const AdEMAMixStep&, const Runs&);
template <class Exec, class T, class Runs>
void schedule_free(const Exec&, const ScheduleFreeStep&, const Runs&);

// Means of weights, for evaluation and export. Nothing fences.

// Moves the mean e (n) of weights w (n) one update on: e = e + (w - e) / tau, an exponential mean over about tau
// updates.
template <class Exec, class A>
void follow_weights(const Exec&, Vector<const A, Exec> weights, double tau, Vector<A, Exec> mean);

// EMA-Nesterov (arXiv 2605.25395), around an update of weights w (n) with the mean d (n) of their displacements: keeps
// w and moves it on, w = w + share d; after the update, d = lerp(d, w - kept, 1 - ema).
template <class Exec, class A>
void look_ahead(const Exec&, Vector<A, Exec> weights, double share, Vector<const A, Exec> mean, Vector<A, Exec> kept);
template <class Exec, class A>
void follow_displacements(const Exec&, Vector<const A, Exec> weights, Vector<const A, Exec> kept, double ema,
                          Vector<A, Exec> mean);

// Exchanges x (n) and y (n).
template <class Exec, class A>
void swap_values(const Exec&, Vector<A, Exec> x, Vector<A, Exec> y);

}  // namespace sestina

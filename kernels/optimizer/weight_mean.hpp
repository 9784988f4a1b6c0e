// Means of weights, for evaluation and export. Nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Moves the mean e (n) of weights w (n) one update on: e = e + (w - e) / tau, an exponential mean over about tau
// updates.
template <class Exec, class A>
void follow_weights(const Exec&, Vector<const A, Exec> weights, double tau, Vector<A, Exec> mean);

// Exchanges x (n) and y (n).
template <class Exec, class A>
void swap_values(const Exec&, Vector<A, Exec> x, Vector<A, Exec> y);

}  // namespace sestina

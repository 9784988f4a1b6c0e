// The router of a mixture of experts: each of N tokens chooses k of E experts by scores of its logits (Shazeer et al.
// 2017). Scores are a softmax, as in Switch, Qwen3-MoE and Mixtral, or sigmoids, as in DeepSeek-V3 (arXiv 2412.19437).
// Biases are for the choice alone (Wang et al. 2024, arXiv 2408.15664): the largest s_e + b_e are chosen, and weigh
// s_e. Sums are in Acc<T>.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

struct RouterRule {
  bool normalised = false;  // weights of a token are divided by their sum
  bool sigmoid = false;     // scores are sigmoids; without losses
  // Factors of the two losses of the router, which are added to the training loss. With p the probabilities, f_e the
  // choices of expert e divided by N, and z the log of the sum of exponentials of a token's logits, they are
  //   balance * N * E * sum_e f_e mean_n p_ne    (load_balancing_loss_func of HF transformers for one layer, times N)
  //   size * sum_n z_n^2                         (Zoph et al. 2022)
  double balance = 0, size = 0;
};

// Turns logits (N, E) into scores, in place, and computes chosen (N, k), the numbers of those whose sums with bias (E),
// which may be empty, are largest, in descending order, of equal ones the lower number first; weight (N, k), their
// scores; log_sums (N), z.
template <class Exec, class A>
void choose_experts(const Exec&, const RouterRule&, Vector<const A, Exec> bias, Matrix<A, Exec> logits,
                    Matrix<std::int32_t, Exec> chosen, Matrix<A, Exec> weight, Vector<A, Exec> log_sums);

// What the forward pass left, and counts (E), the rows of each expert.
template <class Exec, class A>
struct Routed {
  Matrix<const A, Exec> scores, weight;            // (N, E), (N, k)
  Vector<const A, Exec> log_sums;                  // (N)
  Matrix<const std::int32_t, Exec> chosen, place;  // (N, k)
  Vector<const std::int64_t, Exec> counts;         // (E)
};

// Computes dlogits (N, E) from d_weight (N k), the gradients of the weights at their places, and from the losses.
template <class Exec, class T>
void choose_experts_backward(const Exec&, const RouterRule&, const Routed<Exec, Acc<T>>&,
                             Vector<const Acc<T>, Exec> d_weight, Matrix<T, Exec> dlogits);

}  // namespace sestina

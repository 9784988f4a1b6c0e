// Passes over weights that correct for a delay of t updates: prediction, mean movement, estimate of earlier weights.
#pragma once
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {

// Predicts weights (SpecTrain, Chen et al. 2018): they move on as they did in the last update. copy (n) = weight + t
// (weight - copy), where copy held the weights before the update.
template <class Exec, class T>
static void move_on(const Exec& exec, double t, Vector<const T, Exec> weight, Vector<T, Exec> copy) {
  using S = Acc<T>;
  const S updates = static_cast<S>(t);
  for_elements(
      "move_on", exec, 1, copy.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) copy(i) = T(S(weight(i)) + updates * (S(weight(i)) - S(copy(i))));
      });
}

// Updates the mean movement of an update (PipeMare's T2, Yang et al. 2021): velocity (n) = decay velocity + (1 - decay)
// (weight - before),
template <class Exec, class T>
static void follow(const Exec& exec, double decay, Vector<const T, Exec> weight, Vector<const T, Exec> before,
                   Vector<Acc<T>, Exec> velocity) {
  using S = Acc<T>;
  const S new_part = static_cast<S>(1 - decay);
  for_elements(
      "follow", exec, 1, velocity.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) velocity(i) += new_part * (S(weight(i)) - S(before(i)) - velocity(i));
      });
}
// Estimates the weights t updates ago: earlier (n) = weight - t velocity.
template <class Exec, class T>
static void look_back(const Exec& exec, double t, Vector<const T, Exec> weight, Vector<const Acc<T>, Exec> velocity,
                      Vector<T, Exec> earlier) {
  using S = Acc<T>;
  const S updates = static_cast<S>(t);
  for_elements(
      "look_back", exec, 1, earlier.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) earlier(i) = T(S(weight(i)) - updates * velocity(i));
      });
}

// Compensates the gradient (DC-ASGD, Zheng et al. 2017): gradient (n) += lambda gradient^2 (weight - then), where
// `then` are the weights at which it was computed.
template <class Exec, class T>
static void compensate(const Exec& exec, double lambda, Vector<const T, Exec> weight, Vector<const T, Exec> then,
                       Vector<Acc<T>, Exec> gradient) {
  using S = Acc<T>;
  const S factor = static_cast<S>(lambda);
  for_elements(
      "compensate", exec, 1, gradient.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i)
          gradient(i) += factor * gradient(i) * gradient(i) * (S(weight(i)) - S(then(i)));
      });
}

}  // namespace sestina

// What the tests of Newton-Schulz on whole matrices, on shards and in the gram form compare with: the plain loops, on
// the same matrices.
#pragma once
#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"
#include "regression/unit/reference.hpp"

namespace sestina::reference {

inline constexpr NewtonSchulzStep simple_step = {3.4445, -4.7750, 2.0315};
inline constexpr NewtonSchulzStep cubic_step = {1.5, -0.5, 0};  // Newton's own: converges from below 1

inline Array plain_newton_schulz(Array x, const NewtonSchulz& ns) {
  newton_schulz_plain(ns, x.rows, x.cols, x.values);
  return x;
}

// Returns a random matrix that fp32 holds exactly.
inline Array newton_schulz_sample(std::size_t rows, std::size_t cols) {
  return rounded<float>(random_array(rows, cols, static_cast<unsigned>(rows * 1000 + cols)));
}

}  // namespace sestina::reference

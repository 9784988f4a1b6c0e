// One step of Newton-Schulz iteration, as a table of them is written down. No Kokkos.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace sestina {

// X = a X + b (X X^T) X + c (X X^T)^2 X: every singular value x becomes a x + b x^3 + c x^5. c = 0: a cubic step.
struct NewtonSchulzStep {
  double a = 0, b = 0, c = 0;
};

// The divisor of a matrix at first, so that its singular values are at most 1: its Frobenius norm, which is kept from
// zero by the larger of norm and eps, or by norm + eps.
enum class NewtonSchulzNorm { max, add };

// An iteration: what newton_schulz.hpp makes of a matrix. The steps must outlive it.
struct NewtonSchulz {
  std::span<const NewtonSchulzStep> steps;
  double eps = 1e-7;
  NewtonSchulzNorm norm = NewtonSchulzNorm::max;
};

// The momentum of Muon, M = keep M + gain G, and the matrix that is orthogonalised, u = p G + q M, for gradient G.
struct MomentumRule {
  double keep = 0, gain = 0, p = 0, q = 0;
};

// Newton-Schulz as it is written down, in double and by loops, which newton_schulz.hpp is tested against.

// x (m, n), row-major, becomes its orthogonalised form.
inline void newton_schulz_plain(std::span<const NewtonSchulzStep> steps, double eps, NewtonSchulzNorm norm,
                                std::size_t m, std::size_t n, std::vector<double>& x) {
  const bool tall = m > n;
  const std::size_t s = std::min(m, n), l = std::max(m, n);
  const auto at = [&](std::size_t i, std::size_t j) -> double& { return tall ? x[j * n + i] : x[i * n + j]; };
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double size = std::sqrt(squares), by = norm == NewtonSchulzNorm::add ? size + eps : std::max(size, eps);
  for (double& value : x) value = by > 0 ? value / by : 0;
  std::vector<double> a(s * s), p(s * s), column(s);
  for (const NewtonSchulzStep& step : steps) {
    for (std::size_t i = 0; i < s; ++i)
      for (std::size_t j = 0; j < s; ++j) {
        a[i * s + j] = 0;
        for (std::size_t k = 0; k < l; ++k) a[i * s + j] += at(i, k) * at(j, k);
      }
    for (std::size_t i = 0; i < s; ++i)
      for (std::size_t j = 0; j < s; ++j) {
        double squared = 0;
        for (std::size_t k = 0; k < s; ++k) squared += a[i * s + k] * a[k * s + j];
        p[i * s + j] = step.b * a[i * s + j] + step.c * squared + (i == j ? step.a : 0);
      }
    for (std::size_t k = 0; k < l; ++k) {
      for (std::size_t i = 0; i < s; ++i) {
        column[i] = 0;
        for (std::size_t j = 0; j < s; ++j) column[i] += p[i * s + j] * at(j, k);
      }
      for (std::size_t i = 0; i < s; ++i) at(i, k) = column[i];
    }
  }
}

}  // namespace sestina

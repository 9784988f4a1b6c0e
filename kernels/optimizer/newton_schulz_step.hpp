// One step of Newton-Schulz iteration, as a table of them is written down. No Kokkos.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

// The two forms of the iteration, which are equal but for rounding: plain multiplies X in every step; gram multiplies
// Gram matrices, and X once for several steps (kernels/optimizer/newton_schulz_gram.cpp). automatic: the one that takes
// fewer FLOPs.
enum class NewtonSchulzForm : std::uint8_t { automatic, plain, gram };

// An iteration: what newton_schulz.hpp makes of a matrix X. The steps must outlive it.
struct NewtonSchulz {
  std::span<const NewtonSchulzStep> steps;
  double eps = 1e-7;
  NewtonSchulzNorm norm = NewtonSchulzNorm::max;
  NewtonSchulzForm form = NewtonSchulzForm::plain;
  bool gram_norm = false;   // the norm is ||X X^T||^(1/2), which is nearer to the largest singular value
  bool equal_rows = false;  // rows have their root mean square norm before anything else (MuonEq, arXiv 2603.28254)
  bool snap = false;  // the result has the norm of an orthogonal matrix, min(m, n)^(1/2) (Muon+, arXiv 2602.21545)
};

// Returns whether X is formed, and its Gram matrix after it, when so many steps of the gram form are made: after two
// steps, as in the source, and then after every three. Small singular values are lost in a Gram matrix, whose rounding
// is relative to the largest; two steps make them larger by a^2.
constexpr bool restarts_gram(std::size_t steps) { return steps % 3 == 2; }

// Returns the FLOPs of the iteration on a matrix (s, l), s <= l, in the form given: a product of (s, l) with itself is
// s^2 l, as it is symmetric, with another matrix 2 s^2 l.
inline double newton_schulz_flops(std::span<const NewtonSchulzStep> steps, bool gram, double s, double l) {
  double flops = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double square = steps[i].c != 0 ? s * s * s : 0;  // a cubic step squares nothing
    const bool starts = !gram || i == 0 || restarts_gram(i);
    const bool ends = !gram || i + 1 == steps.size() || restarts_gram(i + 1);
    flops += square + (starts ? s * s * l : 2 * s * s * s) + (ends ? 2 * s * s * l : 3 * s * s * s);
  }
  return flops;
}

// Returns whether the gram form is taken for a matrix (s, l).
inline bool takes_gram_form(const NewtonSchulz& ns, std::size_t s, std::size_t l) {
  if (ns.form != NewtonSchulzForm::automatic) return ns.form == NewtonSchulzForm::gram;
  const auto side = static_cast<double>(s), length = static_cast<double>(l);
  return newton_schulz_flops(ns.steps, true, side, length) < newton_schulz_flops(ns.steps, false, side, length);
}

// The momentum of Muon, M = keep M + gain G, and the matrix that is orthogonalised, u = p G + q M, for gradient G.
struct MomentumRule {
  double keep = 0, gain = 0, p = 0, q = 0;
};

// Newton-Schulz as it is written down, in double and by loops, which newton_schulz.hpp is tested against; both forms
// are the same to it.

// Gives rows of x (m, n) the root mean square of their norms; one without a norm stays.
inline void equal_rows_plain(double eps, std::size_t m, std::size_t n, std::vector<double>& x) {
  std::vector<double> squares(m);
  double sum = 0;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) squares[i] += x[i * n + j] * x[i * n + j];
  for (const double value : squares) sum += value;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n && squares[i] > 0; ++j)
      x[i * n + j] *= std::sqrt(sum / static_cast<double>(m)) / std::max(std::sqrt(squares[i]), eps);
}

// x (m, n), row-major, becomes its orthogonalised form.
inline void newton_schulz_plain(const NewtonSchulz& ns, std::size_t m, std::size_t n, std::vector<double>& x) {
  const bool tall = m > n;
  const std::size_t s = std::min(m, n), l = std::max(m, n);
  const auto at = [&](std::size_t i, std::size_t j) -> double& { return tall ? x[j * n + i] : x[i * n + j]; };
  const auto norm_of = [](const std::vector<double>& values) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    return std::sqrt(squares);
  };
  std::vector<double> a(s * s), p(s * s), column(s);
  const auto form_gram = [&] {
    for (std::size_t i = 0; i < s; ++i)
      for (std::size_t j = 0; j < s; ++j) {
        a[i * s + j] = 0;
        for (std::size_t k = 0; k < l; ++k) a[i * s + j] += at(i, k) * at(j, k);
      }
  };
  if (ns.equal_rows) equal_rows_plain(ns.eps, m, n, x);
  if (ns.gram_norm) form_gram();
  const double size = ns.gram_norm ? std::sqrt(norm_of(a)) : norm_of(x);
  const double by = ns.norm == NewtonSchulzNorm::add ? size + ns.eps : std::max(size, ns.eps);
  for (double& value : x) value = by > 0 ? value / by : 0;
  for (const NewtonSchulzStep& step : ns.steps) {
    form_gram();
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
  const double end = norm_of(x);
  if (ns.snap && end > 0)
    for (double& value : x) value *= std::sqrt(static_cast<double>(s)) / end;
}
inline void newton_schulz_plain(std::span<const NewtonSchulzStep> steps, double eps, NewtonSchulzNorm norm,
                                std::size_t m, std::size_t n, std::vector<double>& x) {
  newton_schulz_plain(NewtonSchulz{steps, eps, norm}, m, n, x);
}

}  // namespace sestina

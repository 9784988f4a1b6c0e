// Rules on the update that a kind makes of a matrix, before and while the weight moves; the same for every kind. They
// are written down here as plain loops in double, which kernels/optimizer/shaped_move.hpp is tested against. No Kokkos.
//
// Notation: W is a weight matrix (m, n), U the update of its kind, so that W - lr U is the plain movement; <U, W> is
// the sum of products of elements, ||X|| the Frobenius norm. The rules are taken in this order:
//   1. largest root mean square: U *= min(1, max_update_rms / (rms(U) + 1e-7))         (Emerging-Optimizers)
//   2. given root mean square:   U *= update_rms / rms(U)                    (Moonlight's matching, arXiv 2502.16982)
//      or relative update:       U *= ||W|| / ||U||                                     (Emerging-Optimizers)
//   3. floors: U is scaled up to ||U|| = update_floor ||W||, then each row u_i up to ||u_i|| = row_floor ||w_i||
//                                                                           (modded-nanogpt, track 3, #9 and #46)
//   4. radial brake: c = <U, W> / <W, W>; where c < 0 the movement makes W longer, and U -= (1 - radial_brake) c W
//   5. the movement W' = W - lr U
//   6. radius pin: W' *= r / ||W'|| with r = ||W|| - lr <U, W> / ||W||                  (track 3, #29 and #44)
//   7. decay: W' -= lr wd X, X = W, or W' after a pin; cautious: only where U X >= 0    (arXiv 2510.12402)
// In the place of all of them, the hyperball (track 3, MuonH; arXiv 2606.16899): with R = ||W||,
//   W' = R (W - lr R U / ||U||) / ||W - lr R U / ||U|| ||; nothing decays. R is the norm at the start, which it keeps
//   up to rounding, so that no state is needed.
// A zero U moves nothing by rules that divide by its norm, and a zero W has no norm to follow: it moves by U as it is,
// and not at all on the hyperball.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sestina {

struct UpdateRules {
  bool hyperball = false;
  bool relative_update = false;
  double update_floor = 0, row_floor = 0;  // least ||U|| / ||W||, of the whole and of each row; 0: any
  double max_update_rms = 0;               // 0: any
  double update_rms = 0;                   // 0: as the kind has it
  double radial_brake = 1;                 // share that is kept of the part of U along W where it makes W longer
  bool radius_pin = false;
  bool cautious = false;

  // Returns whether the update must be known by itself, which the fused passes of the kinds do not make.
  bool any() const {
    return hyperball || relative_update || update_floor > 0 || row_floor > 0 || max_update_rms > 0 || update_rms > 0 ||
           radial_brake != 1 || radius_pin || cautious;
  }
};

// What the least norm is that is divided by.
inline constexpr double least_update_norm = 1e-10;

// Moves w (m, n), row-major, by the update u.
inline void shaped_move_plain(const UpdateRules& rules, double lr, double weight_decay, std::size_t m, std::size_t n,
                              std::vector<double> u, std::vector<double>& w) {
  const auto dot = [n](const std::vector<double>& a, const std::vector<double>& b, std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin * n; i < end * n; ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto norm = [&](const std::vector<double>& a) { return std::sqrt(dot(a, a, 0, m)); };
  const auto scale = [n](std::vector<double>& a, double by, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin * n; i < end * n; ++i) a[i] *= by;
  };
  const double radius = norm(w);
  const std::vector<double> before = w;
  if (rules.hyperball) {
    if (norm(u) < least_update_norm || radius < least_update_norm) return;
    scale(u, radius / norm(u), 0, m);
    for (std::size_t i = 0; i < m * n; ++i) w[i] -= lr * u[i];
    return scale(w, radius / norm(w), 0, m);
  }
  constexpr double tiny = 1e-7;
  const double root = std::sqrt(static_cast<double>(m * n));
  if (rules.max_update_rms > 0) scale(u, std::min(1.0, rules.max_update_rms / (norm(u) / root + tiny)), 0, m);
  const auto lift = [&](double size, double target, std::size_t begin, std::size_t end) {
    if (size >= least_update_norm && size < target) scale(u, target / size, begin, end);
  };
  if (rules.update_rms > 0 && norm(u) >= least_update_norm) scale(u, rules.update_rms * root / norm(u), 0, m);
  if (rules.relative_update && norm(u) >= least_update_norm && radius > 0) scale(u, radius / norm(u), 0, m);
  lift(norm(u), rules.update_floor * radius, 0, m);
  for (std::size_t i = 0; i < m && rules.row_floor > 0; ++i)
    lift(std::sqrt(dot(u, u, i, i + 1)), rules.row_floor * std::sqrt(dot(w, w, i, i + 1)), i, i + 1);
  const double c = radius > 0 ? dot(u, w, 0, m) / (radius * radius) : 0;
  if (c < 0)
    for (std::size_t i = 0; i < m * n; ++i) u[i] -= (1 - rules.radial_brake) * c * w[i];
  const double target = radius > 0 ? std::max(0.0, radius - lr * dot(u, w, 0, m) / radius) : 0;
  for (std::size_t i = 0; i < m * n; ++i) w[i] -= lr * u[i];
  if (rules.radius_pin && radius > 0 && norm(w) > 0) scale(w, target / norm(w), 0, m);
  for (std::size_t i = 0; i < m * n; ++i) {
    const double x = rules.radius_pin ? w[i] : before[i];
    if (!rules.cautious || u[i] * x >= 0) w[i] -= lr * weight_decay * x;
  }
}

}  // namespace sestina

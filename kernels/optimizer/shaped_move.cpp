#include "kernels/optimizer/shaped_move.hpp"

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// The terms of the sums over a row: u^2, w^2 and u w of U = -movement.
struct RowTerm {
  const float *movement, *weight;
  KOKKOS_INLINE_FUNCTION double operator()(int which, std::size_t at) const {
    const double u = -static_cast<double>(movement[at]), w = weight[at];
    return which == 0 ? u * u : which == 1 ? w * w : u * w;
  }
};

// Sets sums (3, m) to the sums of these terms.
template <class Space>
void sum_rows(const Space& exec, const RowTerm& term, std::size_t n, Matrix<double, Space> sums) {
  const std::size_t m = sums.extent(1);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for("shaped_rows", Kokkos::RangePolicy<Space>(exec, 0, m), [=](std::size_t i) {
      for (int which = 0; which < 3; ++which)
        sums(which, i) = lane_sum(n, [=](std::size_t j) { return term(which, i * n + j); });
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        "shaped_rows", Teams(exec, static_cast<int>(3 * m), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const int which = team.league_rank() % 3;
          const std::size_t i = team.league_rank() / 3;
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, n), [&](std::size_t j, double& sum) { sum += term(which, i * n + j); },
              total);
          if (team.team_rank() == 0) sums(which, i) = total;
        });
  }
}

// Returns the factor that lifts a size to a target; 1 where it is large enough or nothing.
KOKKOS_INLINE_FUNCTION double lift_factor(double size, double target) {
  return size >= least_update_norm && size < target ? target / size : 1.0;
}

// Returns the factor of all rows of U, from its norm and that of W: rules 1 to 3.
KOKKOS_INLINE_FUNCTION double whole_gain(const UpdateRules& rules, double update, double weight, double elements) {
  constexpr double tiny = 1e-7;
  double gain = 1;
  if (rules.max_update_rms > 0)
    gain = Kokkos::min(1.0, rules.max_update_rms / (update / Kokkos::sqrt(elements) + tiny));
  if (rules.update_rms > 0 && gain * update >= least_update_norm)
    gain = rules.update_rms * Kokkos::sqrt(elements) / update;
  if (rules.relative_update && gain * update >= least_update_norm && weight > 0) gain = weight / update;
  return gain * lift_factor(gain * update, rules.update_floor * weight);
}

// W' = pin (keep W - step g_i u_i), without decay. The brake leaves of U what its sign with W is judged by: U - brake
// W.
struct ShapedFactors {
  double keep = 1, step = 0, pin = 1, brake = 0;
};

// Returns them from <U, U>, <W, W> and <U, W> of the shaped update.
KOKKOS_INLINE_FUNCTION ShapedFactors shaped_factors(const UpdateRules& rules, double lr, double uu, double ww,
                                                    double uw) {
  ShapedFactors f{1, lr, 1, 0};
  const double radius = Kokkos::sqrt(ww);
  if (rules.hyperball) {
    const double size = Kokkos::sqrt(uu);
    if (size < least_update_norm || radius < least_update_norm) return {1, 0, 1, 0};
    f.step = lr * radius / size;
    f.pin = radius / Kokkos::sqrt(ww - 2 * f.step * uw + f.step * f.step * uu);
    return f;
  }
  if (!(ww > 0)) return f;
  const double c = uw / ww;
  double along = uw;  // <U, W> after the brake
  if (c < 0) {
    f.brake = (1 - rules.radial_brake) * c;
    f.keep = 1 + lr * f.brake;
    along = rules.radial_brake * uw;
  }
  if (!rules.radius_pin) return f;
  const double moved = Kokkos::sqrt(f.keep * f.keep * ww - 2 * f.keep * lr * uw + lr * lr * uu);
  if (moved > 0) f.pin = Kokkos::max(0.0, radius - lr * along / radius) / moved;
  return f;
}

// The move of elements of a row: w = pin (keep w + step z) for the movement z = -u, then decay.
struct RowMove {
  float keep, step, pin, brake, decay;
  bool cautious, after_pin;
  KOKKOS_INLINE_FUNCTION void operator()(std::size_t n, float gain, const float* __restrict z,
                                         float* __restrict w) const {
    const float length = step * gain;
    for (std::size_t j = 0; j < n; ++j) {
      const float before = w[j], moved = pin * (keep * before + length * z[j]);
      const float x = after_pin ? moved : before;
      const float sign = (-gain * z[j] - brake * before) * x;
      w[j] = moved - (!cautious || sign >= 0 ? decay * x : 0.0f);
    }
  }
};

// Sets the gains of the rows of U, and the factors of the move that the update so shaped makes.
template <class Space>
void shape_update(const Space& exec, const UpdateRules& rules, double lr, double elements,
                  const ShapedMoveScratch<Space>& s) {
  using Scratch = ShapedMoveScratch<Space>;
  const Matrix<double, Space> sums = s.sums;
  const Vector<double, Space> whole = s.whole;
  const Vector<float, Space> gains = s.gains;
  const std::size_t m = gains.extent(0);
  sum_all(
      "shaped_update", exec, m, KOKKOS_LAMBDA(std::size_t i) { return sums(0, i); },
      KOKKOS_LAMBDA(double sum) { whole(Scratch::unshaped) = sum; });
  sum_all(
      "shaped_weight", exec, m, KOKKOS_LAMBDA(std::size_t i) { return sums(1, i); },
      KOKKOS_LAMBDA(double sum) { whole(Scratch::weight) = sum; });
  Kokkos::parallel_for(
      "shaped_gains", Kokkos::RangePolicy<Space>(exec, 0, m), KOKKOS_LAMBDA(std::size_t i) {
        const double gain =
            whole_gain(rules, Kokkos::sqrt(whole(Scratch::unshaped)), Kokkos::sqrt(whole(Scratch::weight)), elements);
        const double row = lift_factor(gain * Kokkos::sqrt(sums(0, i)), rules.row_floor * Kokkos::sqrt(sums(1, i)));
        gains(i) = static_cast<float>(gain * row);
      });
  sum_all(
      "shaped_squares", exec, m, KOKKOS_LAMBDA(std::size_t i) { return square(gains(i)) * sums(0, i); },
      KOKKOS_LAMBDA(double sum) { whole(Scratch::update) = sum; });
  sum_all(
      "shaped_product", exec, m, KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(gains(i)) * sums(2, i); },
      KOKKOS_LAMBDA(double uw) {
        const ShapedFactors f = shaped_factors(rules, lr, whole(Scratch::update), whole(Scratch::weight), uw);
        whole(Scratch::keep) = f.keep;
        whole(Scratch::step) = f.step;
        whole(Scratch::pin) = f.pin;
        whole(Scratch::brake) = f.brake;
      });
}

}  // namespace

template <class Space>
void shaped_move(const Space& exec, const ShapedMove& move, Matrix<const float, Space> movement,
                 Matrix<float, Space> master, Matrix<bf16, Space> weight, Workspace<Space>& workspace) {
  using Scratch = ShapedMoveScratch<Space>;
  const std::size_t m = master.extent(0), n = master.extent(1);
  SESTINA_REQUIRE(
      movement.extent(0) == m && movement.extent(1) == n && (weight.size() == master.size() || weight.size() == 0),
      "movement ({}, {}), master ({}, {}), weight of {}", movement.extent(0), movement.extent(1), m, n, weight.size());
  if (master.size() == 0) return;
  const auto frame = workspace.frame();
  const Scratch s(workspace, m);
  sum_rows<Space>(exec, {movement.data(), master.data()}, n, s.sums);
  const UpdateRules rules = move.rules;
  shape_update<Space>(exec, rules, move.lr, static_cast<double>(m * n), s);
  const Vector<double, Space> whole = s.whole;
  const Vector<float, Space> gains = s.gains;
  const double decay = rules.hyperball ? 0 : move.lr * move.weight_decay;
  const float* z = movement.data();
  float* w = master.data();
  bf16* rounded = weight.size() == 0 ? nullptr : weight.data();
  double* nonfinite = move.nonfinite;
  for_elements(
      "shaped_move", exec, m, n, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const RowMove row{static_cast<float>(whole(Scratch::keep)),
                          static_cast<float>(whole(Scratch::step)),
                          static_cast<float>(whole(Scratch::pin)),
                          static_cast<float>(whole(Scratch::brake)),
                          static_cast<float>(decay),
                          rules.cautious,
                          rules.radius_pin};
        const std::size_t at = i * n + begin, count = end - begin;
        row(count, gains(i), z + at, w + at);
        flag_nonfinite(count, w + at, nonfinite);
        if (rounded == nullptr) return;
        for (std::size_t j = 0; j < count; ++j) rounded[at + j] = bf16(w[at + j]);
      });
}

#define SESTINA_SHAPED_MOVE(Space)                                                                                    \
  template void shaped_move<Space>(const Space&, const ShapedMove&, Matrix<const float, Space>, Matrix<float, Space>, \
                                   Matrix<bf16, Space>, Workspace<Space>&);
SESTINA_INSTANTIATE_LANES(SESTINA_SHAPED_MOVE)

}  // namespace sestina

#include "kernels/optimizer/matrix_update.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

// Workers that sum term(i) over [0, n): on the host one thread, in order; on a device the one team that runs (Team).
struct Alone {
  template <class Term>
  double sum(std::size_t n, const Term& term) const {
    double total = 0;
    for (std::size_t i = 0; i < n; ++i) total += term(i);
    return total;
  }
  template <class Body>
  void each(std::size_t n, const Body& body) const {
    for (std::size_t i = 0; i < n; ++i) body(i);
  }
  void wait() const {}
  bool first() const { return true; }
};

template <class Member>
struct Team {
  const Member& member;
  template <class Term>
  KOKKOS_FUNCTION double sum(std::size_t n, const Term& term) const {
    double total = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member, n), [&](std::size_t i, double& part) { part += term(i); }, total);
    return total;
  }
  template <class Body>
  KOKKOS_FUNCTION void each(std::size_t n, const Body& body) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, n), body);
  }
  KOKKOS_FUNCTION void wait() const { member.team_barrier(); }
  KOKKOS_FUNCTION bool first() const { return member.team_rank() == 0; }
};

template <class Space>
struct FactorBody {
  ChannelRule rule;
  Vector<const float, Space> direction, projected, gradient;
  Vector<float, Space> update_norm, factors;

  template <class Workers>
  KOKKOS_FUNCTION void run(const Workers& workers) const {
    const std::size_t n = factors.extent(0);
    const double last = static_cast<double>(update_norm(0));
    double whole = 0;
    if (rule.per_tensor) {
      const double a = workers.sum(n, [&](std::size_t i) { return static_cast<double>(direction(i)); });
      const double r = workers.sum(n, [&](std::size_t i) { return static_cast<double>(projected(i)); });
      whole = Kokkos::sqrt(a) / (Kokkos::sqrt(r) + rule.norm_eps);
    }
    const auto factor = [&](std::size_t i) {
      if (rule.per_tensor) return whole;
      return Kokkos::sqrt(static_cast<double>(direction(i))) /
             (Kokkos::sqrt(static_cast<double>(projected(i))) + rule.norm_eps);
    };
    const double squares =
        workers.sum(n, [&](std::size_t i) { return factor(i) * factor(i) * static_cast<double>(gradient(i)); });
    const double root = Kokkos::sqrt(rule.scale);
    double norm = rule.gradient_scale * Kokkos::sqrt(squares) * (rule.scale_front ? root : 1);
    double limit = 1;
    if (rule.limited && rule.growth_limit > 0)
      limit = Kokkos::max(norm / (last + rule.norm_eps), rule.growth_limit) / rule.growth_limit;
    norm /= limit;
    const double common = rule.gradient_scale * root / limit;
    workers.each(n, [&](std::size_t i) { factors(i) = static_cast<float>(common * factor(i)); });
    workers.wait();  // all have read the last norm
    if (workers.first()) update_norm(0) = static_cast<float>(norm);
  }
  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    if constexpr (std::is_integral_v<Member>)
      run(Alone{});
    else
      run(Team<Member>{member});
  }
};

// Moves n elements; factors has one for all (by_row) or one for each element.
KOKKOS_INLINE_FUNCTION void move_range(const MoveFactors& f, bool by_row, std::size_t n,
                                       const float* __restrict factors, const float* __restrict gradient,
                                       float* __restrict master, bf16* __restrict weight) {
  if (by_row) {
    const float factor = *factors;
    for (std::size_t j = 0; j < n; ++j) master[j] = f.after * (f.before * master[j] - f.step * (factor * gradient[j]));
  } else {
    for (std::size_t j = 0; j < n; ++j)
      master[j] = f.after * (f.before * master[j] - f.step * (factors[j] * gradient[j]));
  }
  flag_nonfinite(n, master, f.nonfinite);
  if (weight == nullptr) return;
  for (std::size_t j = 0; j < n; ++j) weight[j] = bf16(master[j]);
}

}  // namespace

template <class Space>
void channel_factors(const Space& exec, const ChannelRule& rule, Vector<const float, Space> direction,
                     Vector<const float, Space> projected, Vector<const float, Space> gradient,
                     Vector<float, Space> update_norm, Vector<float, Space> factors) {
  const std::size_t n = factors.extent(0);
  SESTINA_REQUIRE(
      direction.extent(0) == n && projected.extent(0) == n && gradient.extent(0) == n && update_norm.extent(0) == 1,
      "channels: direction {}, projected {}, gradient {}, factors {}", direction.extent(0), projected.extent(0),
      gradient.extent(0), n);
  const FactorBody<Space> body{rule, direction, projected, gradient, update_norm, factors};
  if constexpr (is_host<Space>)
    Kokkos::parallel_for("channel_factors", Kokkos::RangePolicy<Space>(exec, 0, 1), body);
  else
    Kokkos::parallel_for("channel_factors", Kokkos::TeamPolicy<Space>(exec, 1, 256), body);
}

template <class Space>
void move_channels(const Space& exec, const WeightMove& move, bool by_row, Vector<const float, Space> factors,
                   Matrix<const float, Space> gradient, Matrix<float, Space> master, Matrix<bf16, Space> weight) {
  const std::size_t rows = master.extent(0), cols = master.extent(1);
  SESTINA_REQUIRE(gradient.extent(0) == rows && gradient.extent(1) == cols &&
                      factors.extent(0) == (by_row ? rows : cols) &&
                      (weight.size() == master.size() || weight.size() == 0),
                  "master ({}, {}), gradient ({}, {}), factors {}", rows, cols, gradient.extent(0), gradient.extent(1),
                  factors.extent(0));
  if (cols == 0) return;
  const std::size_t width = is_host<Space> ? cols : 1, pieces = cols / width;
  const MoveFactors f(move);
  const bool has_weight = weight.size() != 0;
  const Kokkos::RangePolicy<Space> lines(exec, 0, rows * pieces);
  Kokkos::parallel_for(
      "move_channels", lines, KOKKOS_LAMBDA(std::size_t line) {
        const std::size_t i = line / pieces, j = line % pieces * width;
        move_range(f, by_row, width, factors.data() + (by_row ? i : j), &gradient(i, j), &master(i, j),
                   has_weight ? &weight(i, j) : nullptr);
      });
}

#define SESTINA_CHANNEL_SCALE(Space)                                                                                 \
  template void channel_factors<Space>(const Space&, const ChannelRule&, Vector<const float, Space>,                 \
                                       Vector<const float, Space>, Vector<const float, Space>, Vector<float, Space>, \
                                       Vector<float, Space>);                                                        \
  template void move_channels<Space>(const Space&, const WeightMove&, bool, Vector<const float, Space>,              \
                                     Matrix<const float, Space>, Matrix<float, Space>, Matrix<bf16, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_CHANNEL_SCALE)

}  // namespace sestina

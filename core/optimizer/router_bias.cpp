#include "core/optimizer/router_bias.hpp"

#include <numeric>

#include "kernels/blas/sums.hpp"

namespace sestina {

// The weights of a mixture are dense: nothing else of it is frozen.
template <class Exec, class T>
RouterBias<Exec, T>::RouterBias(const ModelConfig& config, const Arena<Exec, T>& arena)
    : experts_(static_cast<std::size_t>(config.num_experts)),
      rate_(static_cast<Acc<T>>(config.router_bias_rate)),
      until_(config.router_bias_until) {
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorSpec& spec = arena.specs()[i];
    if (spec.trainable) continue;
    SESTINA_REQUIRE(spec.is_vector() && spec.rows == config.num_experts, "{}: not a bias of {} experts", spec.name,
                    config.num_experts);
    bias_.emplace_back(static_cast<Acc<T>*>(arena.frozen(i)), experts_);
  }
  moving_ = decltype(moving_)("sestina::bias_moves", bias_.size() * experts_);
  if constexpr (is_host<Exec>)
    move_ = moving_;
  else
    move_ = decltype(move_)("sestina::bias_moves_host", moving_.size());
}

// The sign is that of the sum of all loads less experts times the load: whole numbers.
template <class Exec, class T>
void RouterBias<Exec, T>::apply(const Exec& exec, std::int64_t t, const ExpertLoads& loads) const {
  if (until_ > 0 && t > until_) return;
  for (std::size_t i = 0; i < bias_.size(); ++i) {
    const std::span<const double> load = loads.of_layer(i);
    const double sum = std::accumulate(load.begin(), load.end(), 0.0);
    for (std::size_t e = 0; e < experts_; ++e) {
      const double under = sum - static_cast<double>(experts_) * load[e];
      move_(i * experts_ + e) = under > 0 ? rate_ : under < 0 ? -rate_ : Acc<T>(0);
    }
  }
  if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec, moving_, move_);
  for (std::size_t i = 0; i < bias_.size(); ++i)
    add_to<Exec, Acc<T>>(exec, Vector<const Acc<T>, Exec>(moving_.data() + i * experts_, experts_), bias_[i]);
}

#define SESTINA_ROUTER_BIAS(Exec, T) template class RouterBias<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_ROUTER_BIAS)

}  // namespace sestina

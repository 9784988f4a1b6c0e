#include "core/optimizer/expert_loads.hpp"

#include <algorithm>
#include <numeric>

namespace sestina {

ExpertLoads::ExpertLoads(LayerRange layers, std::int64_t experts)
    : layers_(layers),
      experts_(static_cast<std::size_t>(experts)),
      counts_(static_cast<std::size_t>(layers.end - layers.begin) * experts_),
      loads_(counts_.size()) {}

void ExpertLoads::keep(int minibatches) {
  places_ = minibatches;
  counts_.assign(static_cast<std::size_t>(minibatches) * loads_.size(), 0);
}

std::int64_t* ExpertLoads::place_of(std::int64_t minibatch) {
  return counts_.data() + static_cast<std::size_t>(minibatch % places_) * loads_.size();
}

void ExpertLoads::start_step(std::int64_t minibatch) { std::fill_n(place_of(minibatch), loads_.size(), 0); }

Vector<std::int64_t, Host> ExpertLoads::load(std::size_t i, std::int64_t minibatch) {
  return Vector<std::int64_t, Host>(place_of(minibatch) + i * experts_, experts_);
}

std::vector<double>& ExpertLoads::take(std::int64_t minibatch) {
  std::copy_n(place_of(minibatch), loads_.size(), loads_.begin());
  return loads_;
}

LargestLoad ExpertLoads::largest() const {
  LargestLoad found;
  for (int layer = layers_.begin; layer < layers_.end; ++layer) {
    const std::span<const double> loads = of_layer(static_cast<std::size_t>(layer - layers_.begin));
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
    if (sum == 0) continue;  // no pass has been counted
    found.add({*std::max_element(loads.begin(), loads.end()) * static_cast<double>(experts_) / sum, layer});
  }
  return found;
}

}  // namespace sestina

#include "core/layout/rank_layout.hpp"

namespace sestina {

RankLayout lone_layout(const std::vector<TensorSpec>& specs) {
  const ArenaLayout places = arena_layout(specs);
  RankLayout layout;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    TensorHolding tensor;
    tensor.whole = tensor.local = specs[i];
    tensor.owned_end = specs[i].trainable ? specs[i].rows : 0;
    tensor.gradient_offset = places.offset[i];
    layout.tensors.push_back(tensor);
  }
  layout.gradient_elements = places.elements;
  return layout;
}

}  // namespace sestina

#include "parallel/plan/layer_groups.hpp"

#include <algorithm>

namespace sestina {
namespace {

// Returns the lowest layer that a bucket has a matrix of; -1 where it has another matrix too, or none of a layer.
int last_layer_of(const StagePlan& stage, const BucketLayout& bucket) {
  int last = -1;
  for (const int spec : bucket.specs) {
    if (!is_updated_by_layer(stage, at(spec))) return -1;
    const int layer = static_cast<int>(stage.specs[at(spec)].layer);
    last = last < 0 ? layer : std::min(last, layer);
  }
  return last;
}

}  // namespace

std::vector<LayerGroup> layer_groups(const StagePlan& stage, const GradientBuckets& all) {
  std::vector<LayerGroup> groups;
  std::vector<bool> awaited(all.buckets.size());
  for (std::size_t end = stage.specs.size(); end > 0;) {
    const int layer = static_cast<int>(stage.specs[end - 1].layer);
    std::size_t begin = end;
    std::vector<std::size_t> waits;
    for (; begin > 0 && stage.specs[begin - 1].layer == layer; --begin) {
      const auto bucket = static_cast<std::size_t>(all.place[begin - 1].bucket);
      if (!is_updated_by_layer(stage, begin - 1) || awaited[bucket]) continue;
      awaited[bucket] = true;
      waits.push_back(bucket);
    }
    const bool goes_on = waits.empty() && !groups.empty();
    if (layer >= 0 && goes_on) {
      groups.back().first_layer = layer;
      groups.back().first_tensor = begin;
      ++groups.back().layers;
    } else if (layer >= 0) {
      std::sort(waits.begin(), waits.end());
      groups.push_back({layer, 1, begin, end, waits, {}});
    }
    end = begin;
  }
  for (std::size_t bucket = 0; bucket < all.buckets.size(); ++bucket) {
    const int layer = last_layer_of(stage, all.buckets[bucket]);
    for (LayerGroup& group : groups)
      if (layer >= group.first_layer && layer < group.first_layer + group.layers) group.sends.push_back(bucket);
  }
  return groups;
}

}  // namespace sestina

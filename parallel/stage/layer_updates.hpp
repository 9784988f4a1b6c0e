// Updates of a stage's layers before all of its gradients are there (parallel.overlap_updates): once a rank has run its
// own passes it updates, layer by layer in the order of the backward pass, the matrices that it owns, while the
// gradients of further layers, and the passes of other stages, are still under way; and new weights travel at once. So
// waits for gradients and for weights lie under updates. The bits are those of an update that begins when all is there,
// but for a step whose gradients are not all finite: layers where they are have been updated then.
#pragma once
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/stage.hpp"
#include "kernels/base/threads.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/layer_groups.hpp"
#include "parallel/stage/owner_exchange.hpp"

namespace sestina {

template <class Exec, class T>
class LayerUpdates {
 public:
  // The exchanges of gradients and weights, among all data-parallel ranks and among holders of the same experts.
  struct Exchanges {
    std::array<GradientReduce<Exec>*, 2> reduces = {};
    std::array<WeightGather<Exec, T>*, 2> gathers = {};
    Communicator* ranks = nullptr;   // the data-parallel ranks, who find a layer's norm together
    std::function<void()> complete;  // called before the host waits for the space
    Trace* trace = nullptr;          // null: none
  };
  // All must outlive it. The stage has its optimizer.
  LayerUpdates(const Exec&, const StagePlan&, const GradientBuckets&, Stage<Exec, T>&, Exchanges);

  // Makes update t of the layers whose gradients are finite, at a factor of the peak rates, clipped at clip_norm by
  // layer. Returns the seconds of the updates.
  double run(std::int64_t t, double factor, double clip_norm);
  // Makes that of the matrices of no layer, once all gradients are there.
  void run_rest(std::int64_t t, double factor, double gradient_scale);
  // Returns the updates that a tensor should have seen, where its stage has made `made`: a step that is refused may
  // have updated its layer.
  std::int64_t updates_of(const std::string& tensor, std::int64_t made) const;

 private:
  struct Place {
    bool of_experts = false;
    std::size_t number = 0;  // among those of experts, or the others
  };
  struct Layer {
    std::size_t begin = 0, end = 0;  // its matrices among those of the optimizer
    std::int64_t updates = 0;        // made since the start of the process
  };
  void find_matrices();
  void wait_for(const LayerGroup&);
  void sum_squares(std::size_t group);
  double norm_of(const LayerGroup&, int layer) const;
  void update_layer(const LayerGroup&, int layer, std::int64_t t, double factor, double clip_norm);
  void send(const LayerGroup&);

  Exec exec_;
  const StagePlan& plan_;
  Stage<Exec, T>& stage_;
  Exchanges exchanges_;
  std::vector<Place> place_;  // by bucket
  std::vector<LayerGroup> groups_;
  int first_layer_ = 0;
  std::vector<Layer> layers_;                    // from first_layer_ on
  std::map<std::string, std::size_t> layer_of_;  // number in layers_ of each tensor that is updated with its layer
  std::vector<double> squares_;                  // by tensor of the group at hand, over all ranks
};

template <class Exec, class T>
LayerUpdates<Exec, T>::LayerUpdates(const Exec& exec, const StagePlan& plan, const GradientBuckets& buckets,
                                    Stage<Exec, T>& stage, Exchanges exchanges)
    : exec_(exec), plan_(plan), stage_(stage), exchanges_(std::move(exchanges)), groups_(layer_groups(plan, buckets)) {
  std::vector<std::size_t> set_of(plan.specs.size());  // group g is set g + 1, all else set 0
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t i = groups_[g].first_tensor; i < groups_[g].end_tensor; ++i)
      if (is_updated_by_layer(plan, i)) set_of[i] = g + 1;
  stage.norm().divide(stage.arena(), set_of);
  squares_.reserve(plan.specs.size());
  std::size_t count[2] = {};
  for (const bool experts : buckets.of_experts) place_.push_back({experts, count[experts ? 1 : 0]++});
  find_matrices();
}

// The matrices of an optimizer are in the order of the tensors.
template <class Exec, class T>
void LayerUpdates<Exec, T>::find_matrices() {
  if (groups_.empty()) return;
  first_layer_ = groups_.back().first_layer;
  layers_.resize(static_cast<std::size_t>(groups_.front().first_layer + groups_.front().layers - first_layer_));
  for (std::size_t i = 0; i < plan_.specs.size(); ++i)
    if (is_updated_by_layer(plan_, i))
      layer_of_[plan_.specs[i].name] = static_cast<std::size_t>(plan_.specs[i].layer - first_layer_);
  const MatrixSet<Exec>* const set = stage_.optimizer().matrices();
  const std::size_t count = set ? set->size() : 0;
  const auto is_of = [&](std::size_t i, std::size_t layer) {
    const auto found = layer_of_.find(set->items()[i].tensor);
    return found != layer_of_.end() && found->second == layer;
  };
  std::size_t i = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    std::size_t begin = i;
    while (begin < count && !is_of(begin, layer)) ++begin;
    if (begin == count) begin = i;  // this rank owns none of it
    for (i = begin; i < count && is_of(i, layer);) ++i;
    layers_[layer].begin = begin;
    layers_[layer].end = i;
  }
}

template <class Exec, class T>
std::int64_t LayerUpdates<Exec, T>::updates_of(const std::string& tensor, std::int64_t made) const {
  const auto found = layer_of_.find(tensor);
  return found == layer_of_.end() ? made : layers_[found->second].updates;
}

template <class Exec, class T>
double LayerUpdates<Exec, T>::run(std::int64_t t, double factor, double clip_norm) {
  double seconds = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const LayerGroup& group = groups_[g];
    wait_for(group);
    sum_squares(g);
    {
      const SecondsSpent spent(seconds);
      for (int layer = group.first_layer + group.layers; layer-- > group.first_layer;)
        update_layer(group, layer, t, factor, clip_norm);
      if (is_host<Exec>) exec_.fence("update of layers");
    }
    send(group);
  }
  return seconds;
}

// Gradients are scaled in their place, as in an update at the end.
template <class Exec, class T>
void LayerUpdates<Exec, T>::update_layer(const LayerGroup& group, int layer, std::int64_t t, double factor,
                                         double clip_norm) {
  const double norm = norm_of(group, layer), scale = clip_scale(norm, clip_norm);
  if (!std::isfinite(norm)) return;
  const TraceSpan span(exchanges_.trace, "matrices of a layer", layer);
  for (std::size_t i = group.first_tensor; i < group.end_tensor; ++i)
    if (plan_.specs[i].layer == layer && is_updated_by_layer(plan_, i)) stage_.scale_gradient(i, scale);
  Layer& matrices = layers_[static_cast<std::size_t>(layer - first_layer_)];
  stage_.optimizer().step_matrices(t, factor, 1, matrices.begin, matrices.end);
  ++matrices.updates;
}

template <class Exec, class T>
void LayerUpdates<Exec, T>::run_rest(std::int64_t t, double factor, double gradient_scale) {
  Optimizer<Exec, T>& optimizer = stage_.optimizer();
  std::size_t begin = 0;
  for (const Layer& layer : layers_) {
    optimizer.step_matrices(t, factor, gradient_scale, begin, layer.begin);
    begin = layer.end;
  }
  optimizer.step_matrices(t, factor, gradient_scale, begin, optimizer.matrix_count());
}

template <class Exec, class T>
void LayerUpdates<Exec, T>::wait_for(const LayerGroup& group) {
  for (const std::size_t bucket : group.waits)
    exchanges_.reduces[place_[bucket].of_experts ? 1 : 0]->finish_bucket(place_[bucket].number);
}

// Every place is filled by one rank, so the sums over the ranks are exact.
template <class Exec, class T>
void LayerUpdates<Exec, T>::sum_squares(std::size_t number) {
  const LayerGroup& group = groups_[number];
  exchanges_.complete();
  stage_.norm().take(exec_, number + 1);
  squares_.resize(group.end_tensor - group.first_tensor);
  for (std::size_t i = 0; i < squares_.size(); ++i) {
    const std::size_t tensor = group.first_tensor + i;
    squares_[i] = is_updated_by_layer(plan_, tensor) ? stage_.norm().taken(tensor) : 0;
  }
  if (exchanges_.ranks->size() > 1) exchanges_.ranks->all_reduce(squares_.data(), squares_.size(), Reduction::sum);
}

template <class Exec, class T>
double LayerUpdates<Exec, T>::norm_of(const LayerGroup& group, int layer) const {
  double sum = 0;
  for (std::size_t i = group.first_tensor; i < group.end_tensor; ++i)
    if (plan_.specs[i].layer == layer) sum += squares_[i - group.first_tensor];
  return std::sqrt(sum);
}

template <class Exec, class T>
void LayerUpdates<Exec, T>::send(const LayerGroup& group) {
  for (WeightGather<Exec, T>* gather : exchanges_.gathers) {
    for (const std::size_t bucket : group.sends) gather->start(bucket);
    gather->test();
  }
  for (GradientReduce<Exec>* reduce : exchanges_.reduces) reduce->test();
}

}  // namespace sestina

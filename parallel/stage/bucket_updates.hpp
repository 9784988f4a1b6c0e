// Updates of matrices before all gradients are there (parallel.overlap_updates): once a rank has run its own passes it
// updates, bucket by bucket in the order of the backward pass, the matrices that it owns, while the gradients of other
// buckets, and the passes of other stages, are still under way; and new weights travel at once. So waits for gradients
// and for weights lie under updates. A matrix is clipped by its own norm, which its owner knows by itself: no rank
// waits for the updates of another. The bits are those of updates at the end, but for a step whose gradients are not
// all finite: matrices of which they are have been updated then.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/stage.hpp"
#include "kernels/base/threads.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "parallel/stage/owner_exchange.hpp"

namespace sestina {

template <class Exec, class T>
class BucketUpdates {
 public:
  // The exchanges of gradients and weights, among all data-parallel ranks and among holders of the same experts.
  struct Exchanges {
    std::array<GradientReduce<Exec>*, 2> reduces = {};
    std::array<WeightGather<Exec, T>*, 2> gathers = {};
    std::function<void()> complete;  // called before the host waits for the space
    Trace* trace = nullptr;          // null: none
  };
  // All must outlive it. The stage has its optimizer.
  BucketUpdates(const Exec&, const StagePlan&, const GradientBuckets&, Stage<Exec, T>&, const Exchanges&);

  // Makes update t of the matrices whose gradients are finite, at a factor of the peak rates, clipped at clip_norm (0:
  // not), and sends them off. Returns the seconds of the updates.
  double run(std::int64_t t, double factor, double clip_norm);
  // Returns the updates that a tensor should have seen, where its stage has made `made`: a step that is refused may
  // have updated it.
  std::int64_t updates_of(const std::string& tensor, std::int64_t made) const;

 private:
  struct Tensor {
    std::size_t spec = 0;
    std::size_t begin = 0, end = 0;  // its matrices among those of the optimizer
    std::int64_t updates = 0;        // made since the start of the process
  };
  struct Bucket {
    std::size_t number = 0, own_number = 0;  // among all, and among those of experts or the others
    int block = 0;
    bool of_experts = false;
    std::vector<Tensor> tensors;  // of this rank, in the order of the optimizer's matrices
  };
  void find_matrices(const StagePlan&);
  void update(Bucket&, std::int64_t t, double factor, double clip_norm);
  void move_on();
  GradientReduce<Exec>& reduce_of(const Bucket& bucket) { return *exchanges_.reduces[bucket.of_experts ? 1 : 0]; }

  Exec exec_;
  Stage<Exec, T>& stage_;
  Exchanges exchanges_;
  std::vector<Bucket> buckets_;  // of matrices, in the order of the backward pass; number i is set i + 1 of the norm
};

template <class Exec, class T>
BucketUpdates<Exec, T>::BucketUpdates(const Exec& exec, const StagePlan& plan, const GradientBuckets& all,
                                      Stage<Exec, T>& stage, const Exchanges& exchanges)
    : exec_(exec), stage_(stage), exchanges_(exchanges) {
  std::size_t count[2] = {};
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const bool experts = all.of_experts[b];
    const std::size_t own = count[experts ? 1 : 0]++;
    if (plan.is_matrix(all.buckets[b].specs.front())) buckets_.push_back({b, own, all.buckets[b].block, experts, {}});
  }
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.block > b.block; });
  std::vector<std::size_t> set_of(plan.specs.size());  // what elementwise rules update is set 0
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    for (const int spec : all.buckets[buckets_[i].number].specs) set_of[at(spec)] = i + 1;
  stage.norm().divide(stage.arena(), set_of);
  for (std::size_t spec = 0; spec < set_of.size(); ++spec)
    if (set_of[spec] > 0) buckets_[set_of[spec] - 1].tensors.push_back({spec});
  find_matrices(plan);
}

template <class Exec, class T>
void BucketUpdates<Exec, T>::find_matrices(const StagePlan& plan) {
  std::map<std::string, std::pair<std::size_t, std::size_t>> matrices;  // of each tensor that this rank updates
  const MatrixSet<Exec>* const set = stage_.optimizer().matrices();
  for (std::size_t i = 0; set && i < set->size(); ++i)
    matrices.try_emplace(set->items()[i].tensor, i, i).first->second.second = i + 1;
  for (Bucket& bucket : buckets_) {
    std::erase_if(bucket.tensors,
                  [&](const Tensor& tensor) { return !matrices.contains(plan.specs[tensor.spec].name); });
    for (Tensor& tensor : bucket.tensors) std::tie(tensor.begin, tensor.end) = matrices[plan.specs[tensor.spec].name];
  }
}

template <class Exec, class T>
double BucketUpdates<Exec, T>::run(std::int64_t t, double factor, double clip_norm) {
  double seconds = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    reduce_of(bucket).finish_bucket(bucket.own_number);
    if (i + 1 < buckets_.size()) reduce_of(buckets_[i + 1]).start_last_round(buckets_[i + 1].own_number);
    if (!bucket.tensors.empty()) {
      exchanges_.complete();
      stage_.norm().take(exec_, i + 1);
      const SecondsSpent spent(seconds);
      const TraceSpan span(exchanges_.trace, "matrices of a bucket", static_cast<std::int64_t>(bucket.number));
      update(bucket, t, factor, clip_norm);
    }
    exchanges_.gathers[bucket.of_experts ? 1 : 0]->start(bucket.number);
    move_on();
  }
  return seconds;
}

// Neighbours are updated together: side by side on threads, by shape on a device. Where one thread updates them one
// after the other, messages are moved on in between. Gradients are scaled in their place, as in an update at the end.
template <class Exec, class T>
void BucketUpdates<Exec, T>::update(Bucket& bucket, std::int64_t t, double factor, double clip_norm) {
  Optimizer<Exec, T>& optimizer = stage_.optimizer();
  const bool one_by_one = is_host<Exec> && optimizer.streams() == 1;
  std::size_t begin = 0, end = 0;
  const auto step = [&] {
    optimizer.step_matrices(t, factor, 1, std::exchange(begin, end), end);
    if (one_by_one) move_on();
  };
  for (Tensor& tensor : bucket.tensors) {
    const double norm = std::sqrt(stage_.norm().taken(tensor.spec));
    if (!std::isfinite(norm)) continue;
    stage_.scale_gradient(tensor.spec, clip_scale(norm, clip_norm));
    ++tensor.updates;
    if (one_by_one || tensor.begin != end) step();
    if (begin == end) begin = tensor.begin;
    end = tensor.end;
  }
  step();
  if (is_host<Exec>) exec_.fence("update of a bucket");
}

template <class Exec, class T>
void BucketUpdates<Exec, T>::move_on() {
  for (GradientReduce<Exec>* reduce : exchanges_.reduces) reduce->test();
  for (WeightGather<Exec, T>* gather : exchanges_.gathers) gather->test();
}

template <class Exec, class T>
std::int64_t BucketUpdates<Exec, T>::updates_of(const std::string& tensor, std::int64_t made) const {
  for (const Bucket& bucket : buckets_)
    for (const Tensor& one : bucket.tensors)
      if (stage_.arena().specs()[one.spec].name == tensor) return one.updates;
  return made;
}

}  // namespace sestina

#include "parallel/stage/weight_gather.hpp"

#include <algorithm>

#include "kernels/base/seconds_spent.hpp"
#include "parallel/comm/node_levels.hpp"
#include "parallel/comm/stream_order.hpp"

namespace sestina {

template <class Exec, class T>
WeightGather<Exec, T>::WeightGather(const Exec& exec, Communicator& group, const StagePlan& stage,
                                    const GradientBuckets& all, const Arena<Exec, T>& arena)
    : exec_(exec), group_(group) {
  if (group.size() == 1) return;
  for (const BucketLayout& layout : all.buckets) {
    if (layout.cut.empty()) continue;  // everybody updates it
    std::vector<std::vector<Block>> owned(static_cast<std::size_t>(group.size()));
    for (const int spec : layout.specs) {
      const auto i = static_cast<std::size_t>(spec);
      const std::size_t row = arena.row_bytes(i);
      for (int rank = 0; rank < group.size(); ++rank) {
        const OwnedRows rows = owned_rows(stage, all, spec, arena.specs()[i], rank);
        if (rows.begin == rows.end) continue;
        owned[static_cast<std::size_t>(rank)].push_back(
            block_of(static_cast<char*>(arena.computed_with(i)) + static_cast<std::size_t>(rows.begin) * row,
                     static_cast<std::size_t>(rows.end - rows.begin) * row));
      }
    }
    buckets_.push_back({layout.block, make_gather(group, "weights", owned), false});
  }
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.block < b.block; });
}

template <class Exec, class T>
bool WeightGather<Exec, T>::start() {
  if (buckets_.empty()) return true;
  const bool ordered = start_after(exec_, group_, "update");
  for (Bucket& bucket : buckets_) {
    bucket.weights.start();
    bucket.open = true;
  }
  return ordered;
}

// Buckets enter their second phase a block ahead, whatever has come.
template <class Exec, class T>
void WeightGather<Exec, T>::before_forward(int block) {
  const auto next = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.block > block; });
  for (Bucket& bucket : buckets_) {
    if (!bucket.open) continue;
    if (bucket.block <= block) {
      wait_for(bucket);
    } else if (bucket.block == next->block) {
      const SecondsSpent spent(wait_seconds_);
      go_on(exec_, group_, bucket.weights, "weights");
    } else {
      bucket.weights.test();
    }
  }
}

template <class Exec, class T>
void WeightGather<Exec, T>::finish() {
  for (Bucket& bucket : buckets_)
    if (bucket.open) wait_for(bucket);
}

template <class Exec, class T>
void WeightGather<Exec, T>::wait_for(Bucket& bucket) {
  const SecondsSpent spent(wait_seconds_);
  sestina::finish(exec_, group_, bucket.weights, "weights");
  bucket.open = false;
}

#define SESTINA_WEIGHT_GATHER(Exec, T) template class WeightGather<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_WEIGHT_GATHER)

}  // namespace sestina

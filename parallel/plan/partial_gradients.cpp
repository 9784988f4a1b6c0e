#include "parallel/plan/partial_gradients.hpp"

#include "core/layout/model_part.hpp"
#include "parallel/plan/tensor_shard.hpp"

namespace sestina {

std::vector<PartialRun> partial_runs(const StagePlan& stage, const GradientBuckets& all, const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  std::vector<PartialRun> runs;
  if (parallel.tp == 1) return runs;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const BucketLayout& bucket = all.buckets[b];
    bool open = false;  // the run that was made last ends where this tensor begins
    for (std::size_t i = 0; i < bucket.specs.size(); ++i) {
      const TensorSpec& spec = stage.specs[static_cast<std::size_t>(bucket.specs[i])];
      if (!gradient_is_partial(spec, options.model, parallel.tp, parallel.sequence_parallel)) {
        open = false;
        continue;
      }
      const bool same_heads = shard_holders(spec, options.model, parallel.tp, 0).count < parallel.tp;
      const std::int64_t begin = all.begin[b] + bucket.offset[i];
      if (!open || runs.back().block != spec.block || runs.back().same_heads != same_heads)
        runs.push_back({spec.block, begin, 0, same_heads});
      runs.back().elements = begin + local_shape(spec, options.model, parallel.tp, 0).elements() - runs.back().begin;
      open = true;
    }
  }
  return runs;
}

}  // namespace sestina

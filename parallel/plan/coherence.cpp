#include "parallel/plan/coherence.hpp"

#include <algorithm>
#include <cmath>

#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"
#include "kernels/base/random.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

// Returns what all ranks send when each tells so many bytes to every other.
CoherenceBytes told_to_all(std::int64_t bytes, const NodeLevels& levels) {
  const auto ranks = static_cast<std::int64_t>(levels.node_of.size());
  return {ranks * (ranks - 1) * bytes, pairs_between_nodes(levels) * bytes};
}

// Returns the bytes of a matrix (rows, cols) that are averaged and that are copied; zero where it has no job.
struct BlockBytes {
  std::int64_t averaged = 0, copied = 0;
};
BlockBytes block_bytes(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(cols);
  if (refresh_needs(options, m, n).jobs == 0) return {};
  BlockBytes bytes{rows * cols * static_cast<std::int64_t>(sizeof(float)), 0};  // the master weights
  for (const FieldSize& field : fields_of(options, m, n))
    (is_averaged(field.dtype, field.of_basis) ? bytes.averaged : bytes.copied) +=
        static_cast<std::int64_t>(bytes_of(field));
  return bytes;
}

// The matrices of a tensor that have jobs, and the bytes of making all of them equal.
struct TensorReplicas {
  int blocks = 0;
  CoherenceBytes bytes, sketches;
};

// The blocks of a plan, their bytes, and shards that homes send after them.
class CoherenceTally {
 public:
  CoherenceTally(const PlanInput& input, CoherencePlan& plan)
      : input_(input), plan_(plan), levels_(replica_levels(input.parallel)), known_([this](const TensorSpec& spec) {
          TensorReplicas all;
          for (const MatrixPart& part : matrix_parts(spec, input_.optimizer)) {
            const BlockBytes bytes = block_bytes(*input_.optimizer.matrix, part.rows, part.cols);
            if (bytes.averaged == 0) continue;
            ++all.blocks;
            all.bytes.add(synchronisation_bytes(bytes.averaged, bytes.copied, levels_));
            all.sketches.add(told_to_all(sizeof(DriftSketch), levels_));
          }
          return all;
        }) {}

  void add_stage(const StagePlan& stage) {
    for (int spec = 0; spec < static_cast<int>(stage.specs.size()); ++spec) {
      const TensorSpec& whole = stage.specs[at(spec)];
      if (!stage.is_matrix(spec)) continue;
      // Heads that are updated by themselves are whole on their ranks: all ranks together have each once.
      if (is_homed(stage, spec, input_.parallel) || is_by_head(whole, input_.optimizer)) {
        add(whole);
        continue;
      }
      for (int tp_rank = 0; tp_rank < input_.parallel.tp; ++tp_rank)
        add(local_shape(whole, input_.model, input_.parallel.tp, tp_rank));
    }
    for (int dp_rank = 0; dp_rank < input_.parallel.dp; ++dp_rank)
      for (const std::vector<int>& group : homed_groups(stage, input_, dp_rank)) add_shards(stage, group);
  }

 private:
  void add(const TensorSpec& spec) {
    const TensorReplicas replicas = known_.of(spec);
    plan_.blocks += replicas.blocks;
    plan_.synchronisation.add(replicas.bytes);
    if (input_.optimizer.refresh.coherence_drift > 0) plan_.sketch.add(replicas.sketches);
  }
  // The matrices of a micro-group travel together, whichever of them were made equal.
  void add_shards(const StagePlan& stage, const std::vector<int>& group) {
    const auto has_block = [&](int spec) { return known_.of(stage.specs[at(spec)]).blocks > 0; };
    if (std::none_of(group.begin(), group.end(), has_block)) return;
    const NodeLevels levels = shard_levels(input_.parallel);
    const std::int64_t width = sent_width(input_);
    for (const int spec : group)
      for (int rank = 0; rank < input_.parallel.tp; ++rank) {
        if (is_home(stage, spec, rank)) continue;
        const std::int64_t bytes =
            local_shape(stage.specs[at(spec)], input_.model, input_.parallel.tp, rank).elements() * width;
        const bool far = levels.node(rank) != levels.node(stage.home[at(spec)]);
        plan_.synchronisation.add({bytes, far ? bytes : 0});
      }
  }

  const PlanInput& input_;
  CoherencePlan& plan_;
  NodeLevels levels_;
  ByShape<TensorReplicas> known_;
};

// The updates t at which jobs are sent for a matrix by itself, as refresh_due() says: where the number of jobs floor(t
// count / window) goes up.
struct Sends {
  std::int64_t count, window;
  std::int64_t of(std::int64_t t) const { return t * count / window; }                              // up to update t
  std::int64_t update(std::int64_t number) const { return (number * window + count - 1) / count; }  // of job `number`
};

// Returns the update, from t on, after which a block is made equal again that was last made equal after `last`; 0:
// never.
std::int64_t next_synchronisation(const CoherenceRegistry& registry, const Sends& sends, std::int64_t staleness,
                                  std::int64_t t) {
  for (std::int64_t tries = 0; tries <= sends.count + 1; ++tries) {  // each gap between jobs is tried once
    std::int64_t job = sends.of(t);
    if (sends.update(job) <= registry.last(0)) ++job;
    t = std::max(t, sends.update(job) + staleness);
    if (registry.due(0, t, sends.update(sends.of(t)))) return t;
  }
  return 0;
}

Sends sends_of(const OptimizerOptions& optimizer, const StagePlan& stage) {
  if (stage.refresh_window > 0) return {stage.refreshes, stage.refresh_window};
  return {1, optimizer.matrix->refresh_every};
}

// Returns the sketches of a block in one update, at most: one in each update, but in the S of each job of which some
// ranks may not have seen the result yet.
double sketches_per_update(const OptimizerOptions& optimizer, const StagePlan& stage) {
  const Sends sends = sends_of(optimizer, stage);
  if (optimizer.refresh.coherence_drift == 0 || sends.count == 0) return 0;
  const std::int64_t unseen = std::min(sends.count * optimizer.matrix->refresh_staleness, sends.window);
  return 1 - static_cast<double>(unseen) / static_cast<double>(sends.window);
}

// Returns the synchronisations of a block in one update, in the long run: one over the updates from one to the next,
// however far it is; without those that drift starts.
double per_update(const OptimizerOptions& optimizer, const StagePlan& stage) {
  const Sends sends = sends_of(optimizer, stage);
  const std::int64_t staleness = optimizer.matrix->refresh_staleness, budget = optimizer.refresh.coherence_every;
  if (sends.count == 0 || (optimizer.refresh.coherence_drift > 0 && budget == 0)) return 0;
  CoherenceRegistry registry(1, {staleness, budget});
  std::int64_t first = 0;
  constexpr std::int64_t enough = 1000;
  while (registry.version(0) < enough) {
    const std::int64_t t = next_synchronisation(registry, sends, staleness, registry.last(0) + budget + 1);
    if (t == 0) return 0;
    if (first == 0) first = t;
    registry.synchronised(0, t);
  }
  return static_cast<double>(enough - 1) / static_cast<double>(registry.last(0) - first);
}

}  // namespace

NodeLevels planned_levels(const ParallelOptions& parallel) {
  const int members = parallel.node_size > 0 ? std::max(1, parallel.node_size / parallel.tp) : parallel.dp;
  return even_nodes(parallel.dp, members);
}

NodeLevels replica_levels(const ParallelOptions& parallel) {
  if (!replicated_over_tp(parallel)) return planned_levels(parallel);
  const int ranks = parallel.tp * (replicated_over_dp(parallel) ? parallel.dp : 1);
  return even_nodes(ranks, parallel.node_size > 0 ? parallel.node_size : ranks);
}

int replica_rank(const ParallelOptions& parallel, int dp_rank, int tp_rank) {
  if (!replicated_over_tp(parallel)) return dp_rank;
  return tp_rank + (replicated_over_dp(parallel) ? dp_rank * parallel.tp : 0);
}

NodeLevels shard_levels(const ParallelOptions& parallel) {
  return even_nodes(parallel.tp, parallel.node_size > 0 ? parallel.node_size : parallel.tp);
}

bool is_averaged(DType dtype, bool of_basis) { return dtype == DType::f32 && !of_basis; }

// A mean goes to the leader of the node and from there to that of the first node, and comes back the same way. A copy
// goes to its own node and to the other nodes' leaders, who pass it on. Next to them each rank tells every other how
// new its replica is.
CoherenceBytes synchronisation_bytes(std::int64_t averaged, std::int64_t copied, const NodeLevels& levels) {
  const auto ranks = static_cast<std::int64_t>(levels.node_of.size()),
             nodes = static_cast<std::int64_t>(levels.nodes.size());
  CoherenceBytes bytes{(ranks - 1) * (2 * averaged + copied), (nodes - 1) * (2 * averaged + copied)};
  bytes.add(told_to_all(sizeof(std::int64_t), levels));
  return bytes;
}

std::uint64_t sketch_stream(std::uint64_t seed, std::int64_t block, std::int64_t t) {
  return stream_of(seed, fmt::format("drift of block {} after update {}", block, t));
}

// Eight elements share the 128 random bits of a counter, 16 signs each.
void add_to_sketch(std::uint64_t stream, std::uint64_t first, std::span<const float> weights, DriftSketch& sketch) {
  constexpr std::size_t together = 8, in_word = 2;
  for (std::size_t begin = 0; begin < weights.size(); begin += together) {
    const Philox bits = philox(stream, 0, (first + begin) / together);
    const std::size_t n = std::min(together, weights.size() - begin);
    for (std::size_t i = 0; i < n; ++i) {
      const double w = static_cast<double>(weights[begin + i]);
      const std::uint32_t signs = bits[i / in_word] >> (sketch_signs * (i % in_word));
      for (std::size_t j = 0; j < sketch_signs; ++j) sketch[j] += (signs >> j & 1U) != 0 ? w : -w;
      sketch[sketch_signs] += w * w;
    }
  }
}

double estimated_drift(std::span<const DriftSketch> sketches, std::size_t apart) {
  const std::size_t ranks = (sketches.size() + apart - 1) / apart;
  DriftSketch mean{};
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t j = 0; j < mean.size(); ++j)
      mean[j] += (sketches[rank * apart][j] - sketches[0][j]) / static_cast<double>(ranks);
  double largest = 0;  // sums of squares
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    double squares = 0;
    for (std::size_t j = 0; j < sketch_signs; ++j) {
      const double distance = sketches[rank * apart][j] - sketches[0][j] - mean[j];
      squares += distance * distance;
    }
    if (!(squares <= largest) && !std::isnan(largest)) largest = squares;
  }
  const double size = sketches[0][sketch_signs] + mean[sketch_signs];
  return largest == 0 ? 0 : std::sqrt(largest / (static_cast<double>(sketch_signs) * size));
}

// Pieces come from the ranks of its node, or from the other leaders.
std::size_t coherence_staging_elements(const NodeLevels& levels, int rank) {
  const std::vector<int>& mates = levels.mates(rank);
  std::size_t most = 0;
  if (mates.front() == rank) most = mates.size() - 1;
  if (rank == levels.nodes.front().front()) most = std::max(most, levels.nodes.size() - 1);
  return (most + 2) * coherence_piece;
}

CoherencePlan plan_coherence(const PlanInput& input, const std::vector<StagePlan>& stages) {
  CoherencePlan plan;
  if (!replicas_drift(input.parallel, input.optimizer)) return plan;
  CoherenceTally tally(input, plan);
  for (const StagePlan& stage : stages) {
    plan.synchronisations = std::max(plan.synchronisations, per_update(input.optimizer, stage));
    plan.sketches = std::max(plan.sketches, sketches_per_update(input.optimizer, stage));
    tally.add_stage(stage);
  }
  return plan;
}

}  // namespace sestina

// The owners of everything, as plain data: parallel/ computes them from shapes and sizes alone, everything else reads
// them. The same plan is printed, tested without a launcher, and executed. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// Turns a number of a spec, rank or bucket, which is an int (-1 and -2 have meanings), into an index of a vector.
inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

inline constexpr std::int64_t f32_bytes = 4;  // bytes of an element: gradients, masters and state are in fp32

// Returns the most bytes of logits at a time.
inline std::size_t logit_bytes_of(const TrainOptions& train, const RunOptions& run) {
  if (train.logit_bytes > 0) return static_cast<std::size_t>(train.logit_bytes);
  return memory_in(run.space) == MemorySpace::host ? host_logit_bytes : device_logit_bytes;
}

// The parts of a run that a plan follows from; what executes the plan reads nothing else of the deck.
struct PlanInput {
  ModelConfig model;
  TrainOptions train;
  OptimizerOptions optimizer;
  ParallelOptions parallel;
  MachineOptions machine;
  int sequence_length = 1;
  bool deterministic = false, mask_documents = false;
  std::uint64_t seed = 1;
  // Updates between two measurements of an asynchronous stage: how far its weights moved, and the comparison of its
  // gradient with that at the newest weights (0: never).
  std::int64_t metrics_every = 10, tensors_every = 0;
  std::int64_t updates_every = 0;    // updates between two whose movements are measured (0: never)
  std::int64_t rotations_every = 0;  // updates between two after which rotations are measured (0: never)
  std::size_t logit_bytes = host_logit_bytes;
  bool aligns_rows = false;  // see ModelPart
  int pipeline_ranks = 0;    // ranks on which the stages lie, 0 = one stage on each

  PlanInput() = default;
  PlanInput(const Options& options, int ranks = 0)  // ranks: of the run, 0 = one for each stage
      : model(options.model),
        train(options.train),
        optimizer(options.optimizer),
        parallel(options.parallel),
        machine(options.machine),
        sequence_length(options.data.sequence_length),
        deterministic(options.run.deterministic),
        mask_documents(options.data.mask_documents),
        seed(options.run.seed),
        metrics_every(options.metrics.every),
        tensors_every(options.metrics.tensors_every),
        updates_every(options.metrics.updates_every),
        rotations_every(options.metrics.rotations_every),
        logit_bytes(logit_bytes_of(options.train, options.run)),
        aligns_rows(memory_in(options.run.space) != MemorySpace::host &&
                    options.train.precision == TrainOptions::Precision::bf16),
        pipeline_ranks(ranks / (parallel.dp * parallel.tp)) {
    const bool bf16_run = train.precision == TrainOptions::Precision::bf16;
    std::erase_if(machine.update, [bf16_run](const MeasuredUpdate& update) { return update.bf16 != bf16_run; });
  }
};

// Returns one tensor-parallel rank's part of the model, with all experts.
inline ModelPart part_of_rank(const PlanInput& input, int tp_rank) {
  ModelPart part = model_part(input.model, input.parallel.tp, tp_rank, input.parallel.sequence_parallel);
  part.logit_bytes = input.logit_bytes;
  part.aligns_rows = input.aligns_rows;
  return part;
}

// Returns the widths of the numbers that a run computes with, and adds up in.
inline StorageWidth width_of(const PlanInput& input) {
  return input.train.precision == TrainOptions::Precision::bf16 ? width_bf16 : width_fp32;
}
// Returns the bytes in which an element of a weight or an activation travels.
inline std::int64_t sent_width(const PlanInput& input) { return static_cast<std::int64_t>(width_of(input).compute); }

// A contiguous piece of the flat gradient buffer: reduced to the owners when its last block has its gradients, gathered
// from them before its first block runs. Whatever the strategy, what a rank owns of a bucket is one interval. Sizes are
// those of one tensor-parallel rank's shards, in elements; gaps between tensors belong to the tensor before.
struct BucketLayout {
  std::vector<int> specs;            // in layout order
  std::vector<std::int64_t> offset;  // of each spec, from the begin of the bucket
  std::vector<std::int64_t> cut;     // (dp + 1): rank r owns [cut[r], cut[r + 1]), may be empty; replicated: no cuts
  std::int64_t elements = 0;         // of the whole bucket
  int block = 0;                     // lowest TensorSpec::block inside: the last one to finish in backward
};

// Matrices of one data-parallel rank that travel to their homes in one all-to-all and back in another.
struct MicroGroup {
  std::vector<int> specs;
  std::int64_t bytes = 0;  // whole gradients at the fullest home
};

// Values of an owner that are no rank.
inline constexpr int scalar_tensor = -2;  // no one's: AdamW's, cut at rows (ZeRO-1)
inline constexpr int every_rank = -1;     // each rank updates its own copy
inline constexpr int in_shares = -3;      // a home: several ranks of the stage, or any one of them, have MatrixShares

// A rectangle of a matrix of which one rank keeps master weights and state, and which it updates
// (parallel.partition = "groups", parallel/plan/matrix_groups.hpp).
struct MatrixShare {
  int spec = 0, rank = 0;  // rank: of the stage
  std::int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  std::int64_t cost = 0;  // as StagePlan::cost
  // Ranks that update the matrix together, each its share: so many in a row, from a multiple of that on. 1: the share
  // is updated by itself, whatever becomes of the others.
  int ranks = 1;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
  std::int64_t elements() const { return rows() * cols(); }
};

// One pipeline stage. Ranks are numbered inside the stage, tensor-parallel first: rank = dp_rank * tp + tp_rank.
struct StagePlan {
  LayerRange layers;
  std::vector<TensorSpec> specs;
  std::vector<std::int64_t> cost;            // by spec: its update on a rank, in units of parallel.cost; 0: scalar
  std::vector<int> owner;                    // by spec: data-parallel rank, every_rank or scalar_tensor
  std::vector<int> home;                     // by spec: tensor-parallel rank of the owner's group, or as above
  std::vector<BucketLayout> buckets;         // matrices, in backward order; for rank 0 of the stage
  std::vector<BucketLayout> scalar_buckets;  // the rest, in the same way
  std::vector<std::vector<MicroGroup>> micro_groups;  // by data-parallel rank, in order; empty where nothing moves
  // Of the matrices whose home is in_shares, in the order of the updates: the shares of a matrix follow one another,
  // and matrices that more ranks update together come first.
  std::vector<MatrixShare> shares;
  std::vector<std::int64_t> rank_cost;        // (dp * tp): cost of what a rank computes
  std::vector<std::int64_t> rank_elements;    // (dp * tp): elements of the matrices whose state it keeps
  std::int64_t dp_bound = 0, home_bound = 0;  // no assignment has a smaller largest load
  // Refreshes of each matrix in a window of updates, spread evenly; 0: optimizer.refresh.every counts.
  std::int64_t refreshes = 0, refresh_window = 0;
  bool is_matrix(int spec) const { return owner[static_cast<std::size_t>(spec)] != scalar_tensor; }
};

// Largest load divided by the mean load of all ranks, and the smallest such ratio that can be reached, proven.
struct LoadRatio {
  double ratio = 1, bound = 1;
  double gap() const { return bound > 0 ? ratio / bound - 1 : 0; }
};

// Collectives of one kind in one step, as the busiest rank takes part in them.
struct Collective {
  std::string operation;   // reduce_scatter, all_gather, all_reduce, all_to_all, send
  std::string group;       // dp, tp, pp, experts, holders (of the same experts), all
  std::string what;        // gradients, weights, micro_groups, ...
  std::int64_t count = 0;  // calls
  std::int64_t bytes = 0;  // of the whole buffers, summed over the calls
};

}  // namespace sestina

// The memory of a rank's updates: what it keeps of the tensors of a stage for them, and takes while they run. No
// Kokkos.
#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "core/optimizer/base/paged_bytes.hpp"
#include "core/optimizer/base/routing.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/plan_cost.hpp"

namespace sestina {

// What a rank updates of a tensor.
struct UpdatedTensor {
  // scalar: rows, by AdamW or the like; matrix: by an object of optimizer.kind; shard: together with other ranks
  // (core/optimizer/methods/sharded_muon.hpp).
  enum class Rule { scalar, matrix, shard } rule = Rule::scalar;
  const TensorSpec* whole = nullptr;  // of the stage
  TensorSpec kept;
  bool away = false;  // its master weights are not in the arena: a home's, or a share
};

// Returns what a rank of the stage updates. layout: its own (shard_layout).
std::vector<UpdatedTensor> updated_tensors(const StagePlan&, const RankLayout& layout, const PlanInput&, int dp_rank,
                                           int tp_rank);

// Scratch of a part of a matrix on its stream, found once for each shape.
class PartScratch {
 public:
  explicit PartScratch(const OptimizerOptions& optimizer) : optimizer_(optimizer) {}
  std::size_t of(const MatrixPart& part) { return find(part).alone; }
  std::size_t in_batch(const MatrixPart& part) { return find(part).in_batch; }  // on a device

 private:
  struct Scratch {
    std::size_t alone = 0, in_batch = 0;
  };
  const Scratch& find(const MatrixPart&);

  const OptimizerOptions& optimizer_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool>, Scratch> known_;
};

// Adds up the memory of updates, rank by rank: what depends on the shape of a matrix alone is found once for all.
class UpdateMemory {
 public:
  // threads: see rank_memory. The input must outlive it.
  UpdateMemory(const PlanInput&, int threads);
  UpdateMemory(const UpdateMemory&) = delete;
  UpdateMemory& operator=(const UpdateMemory&) = delete;
  // Adds the state of these tensors, master weights that are not in the arena, scratch, and tiers.
  void add(const std::vector<UpdatedTensor>&, const StagePlan&, RankMemory&);

  // What the ranks have in common.
  const PlanInput& input;
  const StorageWidth width;
  const int threads;
  const bool on_device, beside_device;  // beside_device: [machine] describes one, if nothing else
  ByShape<std::size_t> state;
  ByShape<PagedBytes> paged;
  ByShape<RefreshNeeds> jobs;
  PartScratch scratch;
};

}  // namespace sestina

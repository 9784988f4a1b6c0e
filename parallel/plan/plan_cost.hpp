// The cost of updating a matrix, for the balance of loads, and what ranks are charged for it. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/layout/plan.hpp"

namespace sestina {

// Returns the FLOPs of one update of a matrix as its kind states them (core/optimizer/base/sides.hpp), whatever is
// executed. Kinds that state none, and names that are no kind, cost their number of elements.
double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols);

// Returns the seconds of one update with inline refreshes by their period (asynchronous ones run next to it:
// worker_flops). They are measured ones where [machine] has a matrix of this shape, kind and work. Else they are
// estimated from what is executed with these options, with products at the machine's peak and passes over memory at its
// bandwidth, and scaled by measured over estimated seconds of the matrices that were measured.
double update_seconds(const MatrixOptions&, std::int64_t rows, std::int64_t cols, const MachineOptions&);

// Returns the seconds of a refresh of all sides of a matrix in its update: measured ones, or those of the refreshes
// that [machine] has for these options, by FLOPs; 0 where it has none.
double refresh_seconds(const MatrixOptions&, std::int64_t rows, std::int64_t cols, const MachineOptions&);

// Shapes of the matrices of a plan, and how many of them were measured.
struct MeasuredShapes {
  int shapes = 0, measured = 0;
};
MeasuredShapes measured_shapes(const std::vector<StagePlan>&, const PlanInput&);

// Returns the cost of one tensor, with all its heads where it is updated by heads: elements, FLOPs (rounded by matrix),
// or nanoseconds.
std::int64_t tensor_cost(const TensorSpec&, const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);

// The cost of one rank's part in the update of a matrix whose shards stay where they lie (parallel.tp_update =
// "distributed"). Its products have the whole side that is not cut, so the parts together cost more than the matrix.
struct ShardedTensor {
  const TensorSpec &whole, &shard;
  bool counted = true;  // see TensorHolding
};
std::int64_t shard_cost(const ShardedTensor&, const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);

// The cost of a share of a matrix on its rank (parallel.partition = "groups"): of the rectangle as a matrix by itself,
// or of what the rank does of an update that ranks make together, which all of them share out (matrix_groups.hpp).
std::int64_t share_cost(const MatrixShare&, const TensorSpec& whole, const OptimizerOptions&, ParallelOptions::Cost,
                        const MachineOptions&);

// A number that follows from a matrix's shape. A model has few shapes and very many matrices, and some kinds go through
// theirs block by block: each shape is asked for once.
template <class Number>
class ByShape {
 public:
  explicit ByShape(std::function<Number(const TensorSpec&)> number) : number_(std::move(number)) {}
  Number of(const TensorSpec& spec) {
    const auto [place, is_new] = known_.try_emplace({spec.rows, spec.cols, spec.heads, spec.skew_block}, Number{});
    if (is_new) place->second = number_(spec);
    return place->second;
  }

 private:
  std::function<Number(const TensorSpec&)> number_;
  using Shape = std::tuple<std::int64_t, std::int64_t, int, std::int64_t>;  // rows, columns, heads, skew blocks
  std::map<Shape, Number> known_;
};

// tensor_cost and the bytes of optimizer state, by shape. The arguments must outlive them.
ByShape<std::int64_t> tensor_costs(const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);
ByShape<std::size_t> state_bytes(const OptimizerOptions&);

// Throws Error(bad_deck) when [machine] lacks what parallel.cost = "seconds" needs.
void require_machine(ParallelOptions::Cost, const MachineOptions&);
// The same of optimizer.refresh.executor = "auto".
void require_link(const OptimizerOptions&, const MachineOptions&);

// The work of a rank that updates a matrix, or has a part in that, in units of `cost`. It follows from
// parallel.tp_update: all of it where the rank is the matrix's home, its own shard where shards are updated by
// themselves ("blockwise", and blocks of rotations always), and its part of the products where all ranks update shards
// together ("distributed"). The first rank has the most. The input must outlive this object.
class RankCosts {
 public:
  RankCosts(const PlanInput&, ParallelOptions::Cost cost);
  std::int64_t of(const TensorSpec& matrix, int tp_rank);

 private:
  const PlanInput& input_;
  ParallelOptions::Cost cost_;
  ByShape<std::int64_t> whole_;
};

// The loads of the ranks of a stage, whose owners and homes are known: what each computes in an update and keeps for
// it.
struct RankLoads {
  std::vector<std::int64_t> cost, elements;  // (dp * tp): what a rank computes; elements whose state it keeps
};

RankLoads rank_loads(const StagePlan&, const PlanInput&, ParallelOptions::Cost cost);

// Returns, by rank, the FLOPs of asynchronous refreshes in an update, which workers compute next to it; 0 where
// refreshes are inline. periods: the updates between the refreshes of each matrix by its index in the model; empty: as
// the deck says.
std::vector<double> worker_flops(const StagePlan&, const PlanInput&, const std::vector<std::int64_t>& periods);

// Returns the FLOPs of the first bases of each rank's matrices, computed once in a run; 0 where there are none.
std::vector<double> first_bases_flops(const StagePlan&, const PlanInput&);

// Returns the refreshes of one matrix in an update, where the deck gives one period for all of them.
double refreshes_per_update(const StagePlan&, const OptimizerOptions&);

}  // namespace sestina

#include "parallel/plan/plan_cost.hpp"

#include <cmath>

#include "core/layout/rank_layout.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/sides.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

constexpr double nano = 1e9;

double seconds_of(double flops, std::int64_t elements, const MachineOptions& machine) {
  constexpr double giga = 1e9, tera = 1e12;
  constexpr double passes = 7, bytes = 4;  // reads and writes of weight, gradient and two state arrays, f32
  return flops / (*machine.peak_tflops * tera) +
         passes * bytes * static_cast<double>(elements) / (*machine.memory_bandwidth * giga);
}

UpdateWork work_of(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  return kind && kind->work ? kind->work(options, rows, cols) : UpdateWork{};
}

double with_refreshes(const MatrixOptions& options, double update, double refresh) {
  return options.refresh_staleness > 0 ? update : update + refresh / static_cast<double>(options.refresh_every);
}

double estimated_seconds(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                         const MachineOptions& machine) {
  const UpdateWork work = work_of(options, rows, cols);
  return seconds_of(with_refreshes(options, work.update, work.refresh), rows * cols, machine);
}

// True where it was measured with options that make the same work.
bool applies(const MeasuredUpdate& update, const MatrixOptions& options) {
  constexpr double giga = 1e9, digits = 1e-6;
  const double flops = work_of(options, update.rows, update.cols).update;
  return update.kind == options.kind && update.matmul_precision == matmul_precision(options) &&
         update.ns_precision == ns_precision(options) && std::abs(update.gflop * giga - flops) <= digits * flops;
}

const MeasuredUpdate* find_measured(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                                    const MachineOptions& machine) {
  for (const MeasuredUpdate& update : machine.update)
    if (update.rows == rows && update.cols == cols && applies(update, options)) return &update;
  return nullptr;
}

// Returns measured over estimated seconds of all that apply; 1 where none does.
double measured_factor(const MatrixOptions& options, const MachineOptions& machine) {
  double measured = 0, estimated = 0;
  for (const MeasuredUpdate& update : machine.update) {
    if (!applies(update, options)) continue;
    measured += with_refreshes(options, update.seconds, update.refresh_s);
    estimated += estimated_seconds(options, update.rows, update.cols, machine);
  }
  return estimated > 0 ? measured / estimated : 1;
}

}  // namespace

double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  const MatrixKind* row = find_matrix_kind(kind);
  return row && row->stated_flops ? row->stated_flops(r, c) : r * c;
}

double update_seconds(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                      const MachineOptions& machine) {
  if (const MeasuredUpdate* measured = find_measured(options, rows, cols, machine))
    return with_refreshes(options, measured->seconds, measured->refresh_s);
  return measured_factor(options, machine) * estimated_seconds(options, rows, cols, machine);
}

double refresh_seconds(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                       const MachineOptions& machine) {
  double seconds = 0, flops = 0;
  for (const MeasuredUpdate& update : machine.update) {
    if (update.refresh_s == 0 || !applies(update, options)) continue;
    if (update.rows == rows && update.cols == cols) return update.refresh_s;
    seconds += update.refresh_s;
    flops += work_of(options, update.rows, update.cols).refresh;
  }
  return flops > 0 ? seconds / flops * work_of(options, rows, cols).refresh : 0;
}

std::int64_t tensor_cost(const TensorSpec& spec, const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                         const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::elements) return spec.elements();
  std::int64_t sum = 0;
  for (const MatrixPart& part : matrix_parts(spec, optimizer))
    sum += std::llround(cost == ParallelOptions::Cost::flops
                            ? update_flops(optimizer.kind, part.rows, part.cols)
                            : nano * update_seconds(*optimizer.matrix, part.rows, part.cols, machine));
  return sum;
}

std::int64_t shard_cost(const ShardedTensor& tensor, const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                        const MachineOptions& machine) {
  const TensorSpec& shard = tensor.shard;
  if (cost == ParallelOptions::Cost::elements) return shard.elements();
  const bool cut_rows = shard.cols == tensor.whole.cols;
  const std::int64_t side = cut_rows ? shard.cols : shard.rows, length = cut_rows ? shard.rows : shard.cols;
  if (cost == ParallelOptions::Cost::flops)
    return std::llround(stated_shard_products(static_cast<double>(side), static_cast<double>(length), tensor.counted));
  const UpdateWork work = find_matrix_kind(optimizer.kind)->shard_work(*optimizer.matrix, side, length, tensor.counted);
  return std::llround(nano * measured_factor(*optimizer.matrix, machine) *
                      seconds_of(work.update, shard.elements(), machine));
}

std::int64_t share_cost(const MatrixShare& share, const TensorSpec& whole, const OptimizerOptions& optimizer,
                        ParallelOptions::Cost cost, const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::elements) return share.elements();
  if (share.ranks == 1) {
    if (is_whole(share, whole)) return tensor_cost(whole, optimizer, cost, machine);
    TensorSpec part;
    part.rows = share.rows();
    part.cols = share.cols();
    return tensor_cost(part, optimizer, cost, machine);
  }
  const std::int64_t side = std::min(whole.rows, whole.cols), length = share.elements() / side;
  const int place = share.rank % share.ranks;
  const std::int64_t rows = first_row_of(side, share.ranks, place + 1) - first_row_of(side, share.ranks, place);
  const double others = 1 - static_cast<double>(rows) / static_cast<double>(side);  // of the squares' rows
  if (cost == ParallelOptions::Cost::flops) {
    const auto s = static_cast<double>(side);
    return std::llround(stated_shard_products(s, static_cast<double>(length), true) -
                        others * stated_shard_products(s, 0, true));
  }
  const auto executed = [&](std::int64_t of) {
    return find_matrix_kind(optimizer.kind)->shard_work(*optimizer.matrix, side, of, true).update;
  };
  // A product of all rows of a square is symmetric and half as many FLOPs as one of some of them.
  const double squares = executed(0), flops = executed(length) - squares + 2 * squares * (1 - others);
  return std::llround(nano * measured_factor(*optimizer.matrix, machine) *
                      seconds_of(flops, share.elements(), machine));
}

ByShape<std::int64_t> tensor_costs(const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                                   const MachineOptions& machine) {
  return ByShape<std::int64_t>(
      [&optimizer, cost, &machine](const TensorSpec& spec) { return tensor_cost(spec, optimizer, cost, machine); });
}

ByShape<std::size_t> state_bytes(const OptimizerOptions& optimizer) {
  return ByShape<std::size_t>(
      [&optimizer](const TensorSpec& spec) { return optimizer_state_bytes({spec}, optimizer, sizeof(float)); });
}

namespace {

using TpUpdate = ParallelOptions::TpUpdate;

// Returns whether each tensor-parallel rank updates what it holds of a matrix, or has a part in its update.
bool updates_shards(const TensorSpec& matrix, const ParallelOptions& parallel) {
  return parallel.tp > 1 && (matrix.skew_block > 0 || parallel.tp_update == TpUpdate::distributed ||
                             parallel.tp_update == TpUpdate::blockwise);
}

// The part of a matrix that a tensor-parallel rank has, which updates the matrix or has a part in its update.
TensorSpec held_of(const TensorSpec& whole, const PlanInput& input, int tp_rank) {
  return updates_shards(whole, input.parallel) ? local_shape(whole, input.model, input.parallel.tp, tp_rank) : whole;
}

// Calls visit(tp_rank, spec, held) for each such rank of the owner of each matrix of the stage.
template <class Visit>
void for_held(const StagePlan& stage, const PlanInput& input, const Visit& visit) {
  for (std::size_t spec = 0; spec < stage.specs.size(); ++spec) {
    if (stage.owner[spec] == scalar_tensor) continue;
    for (int rank = 0; rank < input.parallel.tp; ++rank) {
      if (stage.home[spec] != every_rank && stage.home[spec] != rank) continue;
      visit(rank, spec, held_of(stage.specs[spec], input, rank));
    }
  }
}

// Adds what a tensor-parallel rank has of a matrix to the owner, or to each data-parallel rank that holds it.
template <class Number>
void add_to_owners(std::vector<Number>& sums, const StagePlan& stage, const PlanInput& input, std::size_t spec,
                   int tp_rank, Number number) {
  const ParallelOptions& parallel = input.parallel;
  const int owner = stage.owner[spec];
  const int begin = owner == every_rank ? 0 : owner, end = owner == every_rank ? parallel.dp : owner + 1;
  for (int dp_rank = begin; dp_rank < end; ++dp_rank)
    if (owner != every_rank || holds(stage.specs[spec], input, dp_rank))
      sums[at(dp_rank * parallel.tp + tp_rank)] += number;
}

}  // namespace

RankCosts::RankCosts(const PlanInput& input, ParallelOptions::Cost cost)
    : input_(input), cost_(cost), whole_(tensor_costs(input.optimizer, cost, input.machine)) {}

std::int64_t RankCosts::of(const TensorSpec& matrix, int tp_rank) {
  if (!updates_shards(matrix, input_.parallel)) return whole_.of(matrix);
  const TensorSpec held = held_of(matrix, input_, tp_rank);
  if (!is_sharded(matrix, input_)) return whole_.of(held);
  const bool counted = shard_holders(matrix, input_.model, input_.parallel.tp, tp_rank).first == tp_rank;
  return shard_cost({matrix, held, counted}, input_.optimizer, cost_, input_.machine);
}

RankLoads rank_loads(const StagePlan& stage, const PlanInput& input, ParallelOptions::Cost cost) {
  const ParallelOptions& parallel = input.parallel;
  const auto ranks = at(parallel.dp * parallel.tp);
  RankLoads loads{std::vector<std::int64_t>(ranks, 0), std::vector<std::int64_t>(ranks, 0)};
  RankCosts costs(input, cost);
  for_held(stage, input, [&](int rank, std::size_t spec, const TensorSpec& held) {
    add_to_owners(loads.cost, stage, input, spec, rank, costs.of(stage.specs[spec], rank));
    add_to_owners(loads.elements, stage, input, spec, rank, held.elements());
  });
  for (const MatrixShare& share : stage.shares) {
    loads.cost[at(share.rank)] +=
        cost == parallel.cost ? share.cost
                              : share_cost(share, stage.specs[at(share.spec)], input.optimizer, cost, input.machine);
    loads.elements[at(share.rank)] += share.elements();
  }
  return loads;
}

MeasuredShapes measured_shapes(const std::vector<StagePlan>& stages, const PlanInput& input) {
  std::map<std::pair<std::int64_t, std::int64_t>, bool> known;
  for (const StagePlan& stage : stages)
    for_held(stage, input, [&](int, std::size_t spec, const TensorSpec& held) {
      const bool sharded = is_sharded(stage.specs[spec], input);
      for (const MatrixPart& part : matrix_parts(held, input.optimizer))
        known[{part.rows, part.cols}] |=
            !sharded && find_measured(*input.optimizer.matrix, part.rows, part.cols, input.machine) != nullptr;
    });
  for (const StagePlan& stage : stages)
    for (const MatrixShare& share : stage.shares)
      known[{share.rows(), share.cols()}] |= share.ranks == 1 && find_measured(*input.optimizer.matrix, share.rows(),
                                                                               share.cols(), input.machine) != nullptr;
  MeasuredShapes shapes{static_cast<int>(known.size()), 0};
  for (const auto& [shape, measured] : known) shapes.measured += measured;
  return shapes;
}

double refreshes_per_update(const StagePlan& stage, const OptimizerOptions& optimizer) {
  if (stage.refresh_window > 0) return static_cast<double>(stage.refreshes) / static_cast<double>(stage.refresh_window);
  return 1 / static_cast<double>(optimizer.matrix->refresh_every);
}

std::vector<double> worker_flops(const StagePlan& stage, const PlanInput& input,
                                 const std::vector<std::int64_t>& periods) {
  const OptimizerOptions& optimizer = input.optimizer;
  std::vector<double> flops(at(input.parallel.dp * input.parallel.tp), 0);
  if (optimizer.refresh_workers() == 0) return flops;
  const MatrixIndex index = periods.empty() ? MatrixIndex{} : matrix_index(tensor_specs(input.model), optimizer);
  const double usual = refreshes_per_update(stage, optimizer);
  for_held(stage, input, [&](int rank, std::size_t spec, const TensorSpec& held) {
    auto number = static_cast<std::size_t>(periods.empty() ? 0 : index.at(stage.specs[spec].name));
    double sum = 0;
    for (const MatrixPart& part : matrix_parts(held, optimizer)) {
      const double often = periods.empty() ? usual : 1 / static_cast<double>(periods.at(number++));
      sum += often * refresh_flops(*optimizer.matrix, part.rows, part.cols);
    }
    add_to_owners(flops, stage, input, spec, rank, sum);
  });
  for_separate_shares(stage, input, [&](std::size_t i, const SeparatePart& one) {
    const auto spec = static_cast<std::size_t>(stage.shares[i].spec);
    const auto first = static_cast<std::size_t>(periods.empty() ? 0 : index.at(stage.specs[spec].name));
    const double often = periods.empty() ? usual : 1 / static_cast<double>(periods.at(first + one.matrix));
    flops[at(stage.shares[i].rank)] += often * refresh_flops(*optimizer.matrix, one.part.rows, one.part.cols);
  });
  return flops;
}

std::vector<double> first_bases_flops(const StagePlan& stage, const PlanInput& input) {
  std::vector<double> flops(at(input.parallel.dp * input.parallel.tp), 0);
  if (!input.optimizer.matrix) return flops;
  for_held(stage, input, [&](int rank, std::size_t spec, const TensorSpec& held) {
    double sum = 0;
    for (const MatrixPart& part : matrix_parts(held, input.optimizer))
      sum += work_of(*input.optimizer.matrix, part.rows, part.cols).first_bases;
    add_to_owners(flops, stage, input, spec, rank, sum);
  });
  for_separate_shares(stage, input, [&](std::size_t i, const SeparatePart& one) {
    flops[at(stage.shares[i].rank)] += work_of(*input.optimizer.matrix, one.part.rows, one.part.cols).first_bases;
  });
  return flops;
}

void require_link(const OptimizerOptions& optimizer, const MachineOptions& machine) {
  if (!optimizer.refresh.chooses_executor) return;
  constexpr std::int64_t any = 64;  // a side: what was measured tells of all
  if (machine.host_bandwidth && refresh_seconds(*optimizer.matrix, any, any, machine) > 0) return;
  fail(ExitCode::bad_deck,
       "optimizer.refresh.executor: \"auto\" needs machine.host_bandwidth, and machine.update.refresh_s of a matrix "
       "that "
       "was updated with the same keys of [optimizer] (sestina bench optimizer --machine), allowed without them "
       "\"worker\"");
}

void require_machine(ParallelOptions::Cost cost, const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::seconds && !(machine.peak_tflops && machine.memory_bandwidth))
    fail(ExitCode::bad_deck,
         "parallel.cost: \"seconds\" needs machine.peak_tflops and machine.memory_bandwidth, allowed without them "
         "\"flops\", \"elements\"");
}

}  // namespace sestina

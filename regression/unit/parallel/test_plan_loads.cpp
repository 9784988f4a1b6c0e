// What ranks are charged for an update is what they execute.
#include <gtest/gtest.h>

#include <numeric>

#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "core/optimizer/methods/soap.hpp"
#include "kernels/optimizer/newton_schulz.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

// A nanosecond is a FLOP, and memory costs nothing.
const MachineOptions flop_by_flop{.peak_tflops = 1e-3, .memory_bandwidth = 1e12};

// Operations of the products that a shard executes, counted by the products themselves.
double counted_products(const MatrixOptions& options, const TensorSpec& whole, const TensorSpec& shard, bool counted) {
  const auto rows = static_cast<std::size_t>(shard.rows), cols = static_cast<std::size_t>(shard.cols);
  const CutSide cut = shard.cols == whole.cols ? CutSide::rows : CutSide::cols;
  const MuonRule rule = muon_rule(options.as<MuonOptions>(), rows, cols);
  const Host exec;
  Gemm<Host> gemm(exec);
  Workspace<Host> workspace(bytes_of<NewtonSchulzShardScratch<float, Host>, Host>(rows, cols, cut));
  const Kokkos::View<float*, Kokkos::HostSpace> u("u", rows * cols);
  const Kokkos::View<double*, Kokkos::HostSpace> squares("squares", chunk_count(rows * cols));
  const ShardSums<Host> alone = {[](Vector<double, Host>) {}, [](Vector<float, Host>) {}};
  const auto frame = workspace.frame();
  newton_schulz_shard<float, Host>(exec, gemm, workspace, rule.newton_schulz(),
                                   {{}, Vector<const float, Host>(u.data(), u.size())}, rows, cols, cut,
                                   Vector<const double, Host>(squares.data(), squares.size()), counted, alone);
  return gemm.take_count().flops;
}

// Of every tensor-parallel rank, those that hold the same key and value heads as another one too.
TEST(PlanLoads, DistributedProductsAreChargedAsTheyAreCounted) {
  for (const char* set : {"simple", "cubic5"}) {
    Options options = plan_options(small_model(), "muon", 2, 4);
    options.model.num_hidden_layers = 1;
    options.model.num_key_value_heads = 2;
    options.optimizer.matrix->set("ns_set", set);
    options.parallel.tp_update = TpUpdate::distributed;
    options.parallel.cost = ParallelOptions::Cost::seconds;
    options.machine = flop_by_flop;
    const Plan plan = make_plan(options);
    const StagePlan& stage = plan.stages[0];
    std::vector<double> want(stage.rank_cost.size(), 0);
    for (std::size_t i = 0; i < stage.specs.size(); ++i)
      for (int rank = 0; rank < 4 && stage.owner[i] >= 0; ++rank) {
        const TensorSpec& whole = stage.specs[i];
        want[at(stage.owner[i] * 4 + rank)] +=
            counted_products(*options.optimizer.matrix, whole, local_shape(whole, options.model, 4, rank),
                             shard_holders(whole, options.model, 4, rank).first == rank);
      }
    for (std::size_t rank = 0; rank < want.size(); ++rank)
      EXPECT_NEAR(static_cast<double>(stage.rank_cost[rank]) / want[rank], 1, 1e-3) << set << ", rank " << rank;
  }
}

// Each tensor-parallel rank of the owner updates the blocks that it holds, and those of a whole side on all ranks. What
// is dense in the second model (blocks of 128 do not divide the two parts of its MLP) has a home, and travels.
TEST(PlanLoads, BlocksOfRotationsAreUpdatedWhereTheyLie) {
  for (const bool mixed : {false, true}) {
    Options options = plan_options(small_model(), "muon", 2, 2);
    LinearOptions& linear = options.model.linear;
    linear.form = "poet-x";
    linear.shards = 2;
    linear.block_size = mixed ? 128 : 8;
    linear.dense_if_indivisible = mixed;
    const Plan plan = make_plan(options);
    const StagePlan& stage = plan.stages[0];
    std::vector<std::int64_t> want(4, 0);
    int homes = 0;
    for (std::size_t i = 0; i < stage.specs.size(); ++i) {
      const TensorSpec& spec = stage.specs[i];
      if (!stage.is_matrix(static_cast<int>(i))) continue;
      const bool turns = spec.skew_block > 0;
      EXPECT_EQ(is_homed(stage, static_cast<int>(i), options.parallel), !turns) << spec.name;
      EXPECT_EQ(stage.home[i] == every_rank, turns) << spec.name;
      homes += turns ? 0 : 1;
      for (int rank = 0; rank < 2; ++rank)
        if (turns || stage.home[i] == rank)
          want[at(stage.owner[i] * 2 + rank)] += tensor_cost(turns ? local_spec(spec, options.model, 2, rank) : spec,
                                                             options.optimizer, options.parallel.cost, options.machine);
    }
    EXPECT_EQ(stage.rank_cost, want);
    EXPECT_EQ(homes > 0, mixed);
    EXPECT_GE(*std::max_element(want.begin(), want.end()), stage.home_bound);
    EXPECT_GE(plan.home_cost.bound, 1);
    const std::vector<Collective> sent = collectives(plan);
    const bool travels = std::any_of(sent.begin(), sent.end(),
                                     [](const Collective& c) { return c.operation == "all_to_all" && c.count > 0; });
    EXPECT_EQ(travels, mixed);
  }
}

// Qwen3-32B over 8 ranks: k and v are cut to 128 x 5120, whose products are as wide as those of all of it.
TEST(PlanLoads, NarrowShardsCostTheirWholeSide) {
  Options options = plan_options(preset("qwen3-32b"), "muon", 1, 8);
  options.model.num_hidden_layers = 1;
  options.parallel.tp_update = TpUpdate::distributed;
  const StagePlan stage = make_plan(options).stages[0];
  double layer = 0, undivided = 0;
  for (std::size_t i = 0; i < stage.specs.size(); ++i) {
    const TensorSpec& whole = stage.specs[i];
    if (!stage.is_matrix(static_cast<int>(i))) continue;
    const TensorSpec shard = local_shape(whole, options.model, 8, 0);
    const bool cut_rows = shard.cols == whole.cols;
    const auto side = static_cast<double>(cut_rows ? shard.cols : shard.rows),
               length = static_cast<double>(cut_rows ? shard.rows : shard.cols);
    const double want = 5 * (4 * length * side * side + 2 * side * side * side);
    const std::int64_t cost = shard_cost({whole, shard, true}, options.optimizer, ParallelOptions::Cost::flops, {});
    EXPECT_DOUBLE_EQ(static_cast<double>(cost), want) << whole.name;
    if (whole.name.find("k_proj") != std::string::npos) {
      EXPECT_NEAR(want / (update_flops("muon", whole.rows, whole.cols) / 8), 95, 1);
    }
    layer += want;
    undivided += update_flops("muon", whole.rows, whole.cols);
  }
  EXPECT_NEAR(layer / (undivided / 8), 2.24, 0.005);
  for (const std::int64_t cost : stage.rank_cost) EXPECT_DOUBLE_EQ(static_cast<double>(cost), layer);
}

// Owners follow what is executed, and so does the stated ratio: it is that of the ranks' loads.
TEST(PlanLoads, OwnersOfShardsAreBalancedByWhatShardsCost) {
  for (const TpUpdate update : {TpUpdate::distributed, TpUpdate::blockwise}) {
    Options options = plan_options(preset("qwen3-32b"), "muon", 24, 8);
    options.parallel.tp_update = update;
    const Plan plan = make_plan(options);
    double largest = 0, sum = 0;
    for (const std::int64_t cost : plan.stages[0].rank_cost) {
      largest = std::max(largest, static_cast<double>(cost));
      sum += static_cast<double>(cost);
    }
    EXPECT_NEAR(largest * plan.ranks() / sum, plan.dp_cost.ratio, 1e-9);
    EXPECT_LE(plan.dp_cost.gap(), 1e-3);
  }
}

TEST(PlanLoads, BlocksOfHeadsKeepTheirHeads) {
  Options options = plan_options(small_model(), "muon", 1, 4);
  options.optimizer.per_head = true;
  for (const TensorSpec& whole : tensor_specs(options.model)) {
    const TensorSpec shard = local_shape(whole, options.model, 4, 0);
    const auto all = matrix_parts(whole, options.optimizer), own = matrix_parts(shard, options.optimizer);
    if (whole.heads == 0) continue;
    EXPECT_EQ(4 * own.size(), all.size()) << whole.name;
    EXPECT_EQ(own.front().rows, all.front().rows) << whole.name;
  }
}

// Seconds of the update are those of what runs in it: jobs of workers run next to it, and are counted there.
TEST(PlanLoads, AsynchronousRefreshesAreChargedToTheirWorkers) {
  for (const char* kind : {"soap", "soap-muon", "shampoo", "kl-shampoo", "kl-soap", "basis-rotation", "galore"}) {
    Options options = plan_options(small_model(), kind, 3);
    options.machine = flop_by_flop;
    const auto loads = [&] {
      const Plan plan = make_plan(options);
      return rank_loads(plan.stages[0], plan.input, ParallelOptions::Cost::seconds).cost;
    };
    const auto workers = [&](const std::vector<std::int64_t>& periods) {
      const Plan plan = make_plan(options);
      return worker_flops(plan.stages[0], plan.input, periods);
    };
    const std::vector<std::int64_t> inlined = loads();
    EXPECT_EQ(workers({}), std::vector<double>(3, 0)) << kind;
    options.optimizer.matrix->refresh_staleness = 5;
    const std::vector<std::int64_t> asynchronous = loads();
    const std::vector<double> jobs = workers({});
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_GT(jobs[rank], 0) << kind;
      EXPECT_NEAR(static_cast<double>(inlined[rank] - asynchronous[rank]) / jobs[rank], 1, 1e-3) << kind;
    }
    const std::size_t matrices = matrix_count(tensor_specs(options.model), options.optimizer);
    const auto every = options.optimizer.matrix->refresh_every;
    EXPECT_NEAR(workers(std::vector<std::int64_t>(matrices, 2 * every))[0] / jobs[0], 0.5, 1e-9) << kind;
  }
}

// First bases are made once: by hand for 96 x 64 (k = 64, d = 96), and each rank those of its own matrices.
TEST(PlanLoads, FirstBasesAreStatedOnce) {
  const auto work = [](const char* kind, bool svd) {
    Options options = plan_options(small_model(), kind, 1);
    if (svd) std::any_cast<SoapOptions&>(options.optimizer.matrix->keys).basis_first = BasisForm::svd;
    return find_matrix_kind(kind)->work(*options.optimizer.matrix, 96, 64).first_bases;
  };
  const double k = 64, d = 96;
  const double completed = 2 * d * k * k - 2 * k * k * k / 3 + 4 * (d * d * k - d * k * k + k * k * k / 3);
  EXPECT_NEAR(work("soap", false), 3 * k * k * d + 11 * k * k * k + completed, 1);
  EXPECT_NEAR(work("soap", true), 6 * k * k * d + 20 * k * k * k + completed, 1);
  EXPECT_EQ(work("kl-soap", false), work("soap", false));
  EXPECT_EQ(work("shampoo", false), 0);
  EXPECT_EQ(work("muon", false), 0);

  const auto flops = [](int ranks) {
    const Plan plan = make_plan(plan_options(small_model(), "soap", ranks));
    return first_bases_flops(plan.stages[0], plan.input);
  };
  const std::vector<double> three = flops(3);
  EXPECT_GT(flops(1)[0], 0);
  EXPECT_NEAR(std::accumulate(three.begin(), three.end(), 0.0), flops(1)[0], 1);
}

// Seconds are those that were measured, of matrices that were; others are told by the rate of these.
TEST(PlanLoads, MeasuredUpdatesComeBeforeEstimates) {
  for (const char* kind : {"muon", "soap"}) {
    Options options = plan_options(small_model(), kind, 1);
    MatrixOptions& matrix = *options.optimizer.matrix;
    matrix.refresh_every = 4;
    options.machine = flop_by_flop;
    const auto seconds = [&](std::int64_t rows, std::int64_t cols) {
      return update_seconds(matrix, rows, cols, options.machine);
    };
    const double estimated = seconds(96, 64), other = seconds(32, 32);
    const UpdateWork work = find_matrix_kind(kind)->work(matrix, 96, 64);
    const double refresh_s = work.refresh > 0 ? 0.5 : 0;
    options.machine.update = {{kind, false, 96, 64, work.update * 1e-9, 0.25, refresh_s}};
    EXPECT_DOUBLE_EQ(seconds(96, 64), 0.25 + refresh_s / 4) << kind;
    EXPECT_NEAR(seconds(32, 32) / other, (0.25 + refresh_s / 4) / estimated, 1e-9) << kind;
    matrix.refresh_staleness = 2;
    EXPECT_DOUBLE_EQ(seconds(96, 64), 0.25) << "workers refresh next to it";
    matrix.refresh_staleness = 0;
    if (kind == std::string("soap")) {
      matrix.set("matmul_precision", "bf16");
      EXPECT_EQ(seconds(96, 64), estimated) << "measured in another precision";
      options.machine.update[0].matmul_precision = "bf16";
      EXPECT_DOUBLE_EQ(seconds(96, 64), 0.25 + refresh_s / 4);
    }
    if (kind == std::string("muon")) {
      matrix.set("ns_precision", "bf16");
      EXPECT_EQ(seconds(96, 64), estimated) << "measured in the precision of the run";
      options.machine.update[0].ns_precision = "bf16";
      EXPECT_DOUBLE_EQ(seconds(96, 64), 0.25 + refresh_s / 4);
    }
    options.machine.update[0].gflop *= 2;
    EXPECT_EQ(seconds(96, 64), estimated) << "measured with other keys";
  }
}

TEST(PlanLoads, LoadsFollowWhatWasMeasured) {
  Options options = plan_options(small_model(), "muon", 2);
  options.machine = flop_by_flop;
  options.parallel.cost = ParallelOptions::Cost::seconds;
  const StagePlan stage = make_plan(options).stages[0];
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const TensorSpec& spec : stage.specs)
    if (spec.role == Role::matrix) shapes.insert({spec.rows, spec.cols});
  double seconds = 0;
  for (const auto& [rows, cols] : shapes) {
    const double gflop = find_matrix_kind("muon")->work(*options.optimizer.matrix, rows, cols).update * 1e-9;
    options.machine.update.push_back({"muon", false, rows, cols, gflop, seconds += 0.125});
  }
  const Plan plan = make_plan(options);
  for (std::size_t i = 0; i < stage.specs.size(); ++i) {
    const TensorSpec& spec = stage.specs[i];
    if (spec.role != Role::matrix) continue;
    const auto place = std::distance(shapes.begin(), shapes.find({spec.rows, spec.cols}));
    EXPECT_EQ(plan.stages[0].cost[i], 125'000'000 * (place + 1)) << spec.name;
  }
  const MeasuredShapes known = measured_shapes(plan.stages, plan.input);
  EXPECT_EQ(known.measured, static_cast<int>(shapes.size()));
  EXPECT_EQ(known.shapes, known.measured);
  options.train.precision = TrainOptions::Precision::bf16;
  EXPECT_EQ(measured_shapes(plan.stages, options).measured, 0) << "measured in another precision";
}

// Packed snapshots go to the host, new bases and their orders come back.
TEST(PlanLoads, RefreshesOfADeviceCrossTheLink) {
  Options options = plan_options(small_model(), "soap", 1);
  options.optimizer.matrix->refresh_every = 4;
  EXPECT_EQ(rank_memory(make_plan(options), 0)[0].refresh_moved, 0);
  options.optimizer.matrix->refresh_staleness = 3;
  double bytes = 0;
  const Plan plan = make_plan(options);
  for (std::size_t i = 0; i < plan.stages[0].specs.size(); ++i) {
    const TensorSpec& spec = plan.stages[0].specs[i];
    if (plan.stages[0].is_matrix(static_cast<int>(i)))
      for (const auto side : {static_cast<double>(spec.rows), static_cast<double>(spec.cols)})
        bytes += 4 * side * (side + 1) / 2 + 4 * side * side + 4 * side;
  }
  EXPECT_DOUBLE_EQ(rank_memory(plan, 0)[0].refresh_moved, bytes / 4);
  EXPECT_EQ(rank_memory(plan, 1)[0].refresh_moved, 0) << "a host copies nothing to itself";
  options.machine.memory = 80;  // of the target, planned for from a host
  EXPECT_DOUBLE_EQ(rank_memory(make_plan(options), 1)[0].refresh_moved, bytes / 4);
}

}  // namespace
}  // namespace sestina

// Matrices in shares (parallel.partition = "groups"): every element has one rank, loads are those of the shares, groups
// are where they may be, and ratios are those that the largest models reach.
#include "parallel/plan/matrix_groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "core/optimizer/base/own_blocks.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

Plan grouped_plan(const ModelConfig& model, const std::string& kind, int dp, int tp) {
  Options options = plan_options(model, kind, dp, tp);
  options.parallel.partition = ParallelOptions::Partition::groups;
  options.train.global_batch = options.train.micro_batch * dp;
  return make_plan(options);
}

// Whether the rectangles of a matrix cover each element once: areas add up, and no two overlap.
void expect_tiles(const std::vector<MatrixShare>& shares, const TensorSpec& spec) {
  std::int64_t area = 0;
  std::set<int> ranks;
  for (const MatrixShare& a : shares) {
    area += a.elements();
    EXPECT_TRUE(ranks.insert(a.rank).second) << spec.name << ": two shares on rank " << a.rank;
    EXPECT_TRUE(0 <= a.row_begin && a.row_begin < a.row_end && a.row_end <= spec.rows) << spec.name;
    EXPECT_TRUE(0 <= a.col_begin && a.col_begin < a.col_end && a.col_end <= spec.cols) << spec.name;
    for (const MatrixShare& b : shares)
      if (&a != &b)
        EXPECT_TRUE(a.row_end <= b.row_begin || b.row_end <= a.row_begin || a.col_end <= b.col_begin ||
                    b.col_end <= a.col_begin)
            << spec.name;
  }
  EXPECT_EQ(area, spec.elements()) << spec.name;
}

// Ranks in a row from a multiple of their number on, each with a slab of the longer side.
void expect_group(const std::vector<MatrixShare>& shares, const TensorSpec& spec, int ranks) {
  const auto size = static_cast<int>(shares.size());
  EXPECT_EQ(ranks % size, 0);
  EXPECT_EQ(shares[0].rank % size, 0);
  for (int i = 0; i < size; ++i) {
    EXPECT_EQ(shares[at(i)].ranks, size);
    EXPECT_EQ(shares[at(i)].rank, shares[0].rank + i);
    EXPECT_EQ(spec.rows >= spec.cols ? shares[at(i)].cols() : shares[at(i)].rows(), std::min(spec.rows, spec.cols));
  }
}

void expect_shares(const Plan& plan) {
  const int ranks = plan.dp * plan.tp;
  for (const StagePlan& stage : plan.stages) {
    std::vector<std::vector<MatrixShare>> of(stage.specs.size());
    std::vector<std::int64_t> load(at(ranks), 0);
    for (const MatrixShare& share : stage.shares) {
      of[at(share.spec)].push_back(share);
      load[at(share.rank)] += share.cost;
      EXPECT_EQ(share.cost, share_cost(share, stage.specs[at(share.spec)], plan.input.optimizer,
                                       plan.input.parallel.cost, plan.input.machine));
    }
    for (std::size_t i = 0; i < stage.specs.size(); ++i) {
      if (stage.owner[i] == scalar_tensor) continue;
      ASSERT_TRUE(0 <= stage.owner[i] && stage.owner[i] < plan.dp);
      EXPECT_EQ(stage.home[i] == in_shares, !of[i].empty());
      if (of[i].empty()) {
        EXPECT_EQ(plan.tp, 1);
        load[at(stage.owner[i])] += stage.cost[i];
        continue;
      }
      expect_tiles(of[i], stage.specs[i]);
      if (of[i][0].ranks > 1) expect_group(of[i], stage.specs[i], ranks);
    }
    EXPECT_EQ(stage.rank_cost, load);
    const double all = std::accumulate(stage.cost.begin(), stage.cost.end(), 0.0);
    EXPECT_NEAR(std::accumulate(load.begin(), load.end(), 0.0), all, 1e-6 * all) << "nothing is calculated twice";
  }
}

TEST(MatrixGroups, EveryElementHasOneRank) {
  for (const char* kind : {"muon", "normuon", "adamuon", "soap", "kl-soap", "shampoo", "galore"})
    for (const auto& [dp, tp] : {std::array{1, 2}, {3, 1}, {4, 2}, {50, 1}, {2, 4}, {1, 8}, {6, 1}}) {
      SCOPED_TRACE(testing::Message() << kind << ", " << dp << " x " << tp);
      const Plan plan = grouped_plan(small_model(), kind, dp, tp);
      expect_shares(plan);
      EXPECT_GE(plan.machine_cost.ratio, plan.machine_cost.bound - 1e-9);
      EXPECT_GE(plan.machine_cost.bound, 1 - 1e-9);
    }
}

TEST(MatrixGroups, OneRankHasNoShares) {
  const Plan plan = grouped_plan(small_model(), "muon", 1, 1);
  EXPECT_TRUE(plan.stages[0].shares.empty());
  EXPECT_EQ(plan.machine_cost.ratio, 1);
}

TEST(MatrixGroups, SizesAreMultiplesOfOneAnother) {
  EXPECT_EQ(group_sizes(1), (std::vector{1}));
  EXPECT_EQ(group_sizes(8), (std::vector{1, 2, 4, 8}));
  EXPECT_EQ(group_sizes(12), (std::vector{1, 2, 4, 12}));
  EXPECT_EQ(group_sizes(15), (std::vector{1, 3, 15}));
  EXPECT_EQ(group_sizes(7), (std::vector{1, 7}));
}

// Where there are enough matrices, none is divided: 7 x 64 of them for 8 ranks.
TEST(MatrixGroups, NoMatrixIsDividedWithoutNeed) {
  const Plan plan = grouped_plan(preset("qwen3-32b"), "muon", 8, 1);
  EXPECT_TRUE(plan.stages[0].shares.empty());
  EXPECT_LE(plan.machine_cost.ratio, 1.05);
}

// Gradients of shares are summed to ranks that receive no more of all than others, as far as whole tensors allow it.
TEST(MatrixGroups, ReceiversAreEven) {
  for (const char* kind : {"muon", "soap"}) {
    const StagePlan stage = grouped_plan(preset("qwen3-32b"), kind, 64, 8).stages[0];
    std::vector<std::int64_t> received(64, 0);
    for (std::size_t i = 0; i < stage.specs.size(); ++i)
      if (stage.owner[i] >= 0) received[at(stage.owner[i])] += stage.specs[i].elements();
    const double sum = std::accumulate(received.begin(), received.end(), 0.0);
    EXPECT_LE(static_cast<double>(*std::max_element(received.begin(), received.end())) * 64 / sum, 1.1) << kind;
  }
}

// Whole matrices reach 2.9 at best on 512 ranks, and 8.5 on 2,048. Blocks of 1024 x 1024 are too few for Qwen3-1.7B.
TEST(MatrixGroups, LargeMachinesAreBalanced) {
  struct Machine {
    const char *model, *kind;
    int dp, tp;
    double most, max_dim = 0;
  };
  for (const Machine& machine : {Machine{"qwen3-32b", "muon", 64, 8, 1.05},
                                 {"qwen3-32b", "muon", 128, 16, 1.05},
                                 {"qwen3-1.7b", "muon", 512, 1, 1.05},
                                 {"qwen3-1.7b", "muon", 256, 8, 1.05},
                                 {"qwen3-32b", "normuon", 64, 8, 1.05},
                                 {"qwen3-32b", "adamuon", 128, 16, 1.05},
                                 {"qwen3-1.7b", "normuon", 512, 1, 1.05},
                                 {"qwen3-32b", "shampoo", 64, 8, 1.1},
                                 {"qwen3-32b", "shampoo", 128, 16, 1.1},
                                 {"qwen3-1.7b", "shampoo", 512, 1, 1.1, 512},
                                 {"qwen3-32b", "soap", 64, 8, 1.3}}) {
    Options options = plan_options(preset(machine.model), machine.kind, machine.dp, machine.tp);
    options.parallel.partition = ParallelOptions::Partition::groups;
    if (machine.max_dim > 0) options.optimizer.matrix->set("max_dim", machine.max_dim);
    const Plan plan = make_plan(options);
    EXPECT_LE(plan.machine_cost.ratio, machine.most) << machine.model << ", " << machine.kind << ", " << machine.dp;
    EXPECT_GE(plan.machine_cost.ratio, plan.machine_cost.bound - 1e-9);
  }
}

// Six blocks of a matrix and four ranks: it stays whole, and is to its rank what it is to one rank by itself.
TEST(MatrixGroups, MoreBlocksThanRanksStayTogether) {
  Options options = plan_options(small_model(), "soap", 2, 2);
  options.parallel.partition = ParallelOptions::Partition::groups;
  options.optimizer.matrix->set("max_dim", 100);
  const Plan plan = make_plan(options);
  const StagePlan& stage = plan.stages[0];
  expect_shares(plan);
  bool some = false;
  for (const MatrixShare& share : stage.shares) {
    const std::size_t parts = matrix_parts(stage.specs[at(share.spec)], options.optimizer).size();
    some = some || parts > 4;
    if (parts > 4) EXPECT_TRUE(is_whole(share, stage.specs[at(share.spec)]));
  }
  EXPECT_TRUE(some);
}

// By elements and by seconds, in which a rank's rows of a square cost twice what they do of all rows.
TEST(MatrixGroups, EveryCostIsBalanced) {
  for (const auto cost : {ParallelOptions::Cost::elements, ParallelOptions::Cost::seconds}) {
    Options options = plan_options(preset("qwen3-1.7b"), "muon", 128, 2);
    options.parallel.partition = ParallelOptions::Partition::groups;
    options.parallel.cost = cost;
    options.machine.peak_tflops = 100;
    options.machine.memory_bandwidth = 1000;
    const Plan plan = make_plan(options);
    EXPECT_LE(plan.machine_cost.ratio, 1.3);
    EXPECT_GE(plan.machine_cost.ratio, plan.machine_cost.bound - 1e-9);
  }
}

// Rules on the update act on whole matrices, heads are matrices by themselves.
TEST(MatrixGroups, RulesAndHeadsAreNotDivided) {
  Options options = plan_options(small_model(), "muon", 16);
  options.parallel.partition = ParallelOptions::Partition::groups;
  options.optimizer.per_head = true;
  const StagePlan heads = make_plan(options).stages[0];
  std::set<int> ranks_of_heads;
  for (const MatrixShare& share : heads.shares)
    if (heads.specs[at(share.spec)].heads > 1) {
      EXPECT_EQ(share.ranks, 1);
      EXPECT_EQ(share.rows() * heads.specs[at(share.spec)].heads, heads.specs[at(share.spec)].rows);
      ranks_of_heads.insert(share.rank);
    }
  EXPECT_GT(ranks_of_heads.size(), 1u);
  options.optimizer.per_head = false;
  options.optimizer.rules.cautious = options.optimizer.matrix->rules.cautious = true;
  const Plan cautious = make_plan(options);
  for (const MatrixShare& share : cautious.stages[0].shares) EXPECT_EQ(share.ranks, 1);
}

// A round has no more than the deck allows at one rank, unless one matrix has; and shares keep their order.
TEST(MatrixGroups, RoundsAreAsLargeAsAllowed) {
  Options options = plan_options(small_model(), "muon", 4, 2);
  options.parallel.partition = ParallelOptions::Partition::groups;
  for (const std::int64_t most : {std::int64_t{1}, std::int64_t{200000}, std::int64_t{1} << 40}) {
    options.parallel.micro_group_bytes = most;
    const StagePlan stage = make_plan(options).stages[0];
    const std::vector<std::size_t> rounds = share_rounds(stage, options.parallel);
    ASSERT_GE(rounds.size(), 2u);
    EXPECT_EQ(rounds.front(), 0u);
    EXPECT_EQ(rounds.back(), stage.shares.size());
    if (most > 1 << 30) EXPECT_EQ(rounds.size(), 2u);
    for (std::size_t r = 0; r + 1 < rounds.size(); ++r) {
      for (int rank = 0; rank < 8; ++rank) {
        std::int64_t bytes = 0;
        std::set<int> specs;
        for (std::size_t i = rounds[r]; i < rounds[r + 1]; ++i) {
          if (stage.shares[i].rank != rank) continue;
          bytes += 4 * stage.shares[i].elements();
          specs.insert(stage.shares[i].spec);
        }
        if (specs.size() > 1) EXPECT_LE(bytes, most);
      }
    }
  }
}

// Blocks that a kind cuts by itself, and their state as part of the whole matrix's.
TEST(MatrixGroups, BlocksAreThoseOfTheKind) {
  Options options = plan_options(small_model(), "shampoo", 4);
  options.optimizer.matrix->set("max_dim", 16);
  TensorSpec spec;
  spec.name = "w";
  spec.rows = 40;
  spec.cols = 24;
  const std::vector<MatrixPart> blocks = own_blocks(spec, options.optimizer);
  ASSERT_EQ(blocks.size(), 6u);
  EXPECT_EQ(blocks[3].name, "w/share_1_1");
  EXPECT_EQ(blocks[5].row_begin, 32);
  EXPECT_EQ(blocks[5].col_begin, 16);
  EXPECT_EQ(blocks[5].rows, 8);
  EXPECT_EQ(blocks[5].cols, 8);
  const auto placed = [&](const std::string& name, std::vector<std::int64_t> shape) {
    StateField field;
    field.path = "/optimizer/w/share_2_1/" + name;
    field.row_end = shape[0];
    field.shape = std::move(shape);
    become_part_of_whole(field, spec, blocks[5], 5, options.optimizer);
    return field;
  };
  EXPECT_EQ(placed("factor_left", {8, 8}).path, "/optimizer/w/block_2_1.factor_left");
  const StateField momentum = placed("momentum", {8, 8});
  EXPECT_EQ(momentum.path, "/optimizer/w/momentum");
  EXPECT_EQ(momentum.shape, (std::vector<std::int64_t>{40, 24}));
  EXPECT_EQ(momentum.row_begin, 32);
  EXPECT_EQ(momentum.col_begin, 16);
  EXPECT_EQ(momentum.col_end, 24);
  const StateField failures = placed("failures", {2});
  EXPECT_EQ(failures.shape, (std::vector<std::int64_t>{12}));
  EXPECT_EQ(failures.row_begin, 10);
  EXPECT_FALSE(placed("updates", {1}).saved);
  options.optimizer.matrix->set("max_dim", 40);
  EXPECT_TRUE(own_blocks(spec, options.optimizer).empty());
  options.optimizer.matrix->set("max_dim", 16);
  options.optimizer.matrix->set("merge_dims", 1);
  spec.cols = 17;  // a block of one column would be a vector by itself
  EXPECT_TRUE(own_blocks(spec, options.optimizer).empty());
  EXPECT_TRUE(own_blocks(spec, plan_options(small_model(), "soap", 4).optimizer).empty());
}

}  // namespace
}  // namespace sestina

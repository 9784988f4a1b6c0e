// Data and tensor parallelism together, for every optimizer over every grid that fits the ranks: against one rank, and
// the ways of updating under tensor parallelism against one another.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

// Ranks: Grids 2 4 6
template <class Space>
class Grids : public testing::Test {
 protected:
  // More than two ranks share the cores: two refreshes after the first bases.
  static int some() { return world().size() == 2 ? 6 : 4; }
  static int many() { return world().size() == 2 ? 50 : 9; }
  static constexpr int first_refresh = 5;  // a cold start, a refresh (in update 4) and an update after it

  // Several tests look at the same runs, each at a time of its own (some(), first_refresh or many() updates): every
  // kind is trained once on each grid. tp = 0: one rank alone.
  static const Trained& of(const std::string& kind, int tp, int updates) {
    std::map<int, Trained>& run = runs_[{kind, tp}];
    if (run.empty()) {
      std::vector<int> looks = {some(), first_refresh, many()};
      std::sort(looks.begin(), looks.end());
      std::vector<Trained> trained(looks.size());
      if (tp > 0)
        trained = train_through<float, Space>(world(), grid_case(kind, tp), looks);
      else if (world().rank() == 0)
        trained = train_through<float, Space>(*make_lone_communicator(), alone(grid_case(kind, 1)), looks);
      for (std::size_t i = 0; i < looks.size(); ++i) {
        if (tp == 0) take_from_first(trained[i]);
        run[looks[i]] = std::move(trained[i]);
      }
    }
    return run.at(updates);
  }

 private:
  static inline std::map<std::pair<std::string, int>, std::map<int, Trained>> runs_;
};
TYPED_TEST_SUITE(Grids, reference::RunSpaces, reference::SpaceNames);

// In the tensor-parallel group too, wherever the matrix is updated.
TYPED_TEST(Grids, WeightsThatOverflowOnOneRankAreKnownToAll) {
  for (const int tp : tensor_sizes())
    for (const auto update : {ParallelOptions::TpUpdate::home, ParallelOptions::TpUpdate::duplicated,
                              ParallelOptions::TpUpdate::distributed, ParallelOptions::TpUpdate::blockwise}) {
      TrainingCase run = grid_case("muon", tp);
      run.options.parallel.tp_update = update;
      EXPECT_EQ(finite_after_overflow<TypeParam>(run), (std::vector<bool>{true, false})) << tp;
    }
}

TYPED_TEST(Grids, EveryOptimizerAgreesWithOneRank) {
  const int updates = this->many();
  for (const std::string& kind : every_kind()) {
    const Trained& one = this->of(kind, 0, updates);
    for (const int tp : tensor_sizes()) {
      const Trained& several = this->of(kind, tp, updates);
      const std::string what = fmt::format("{} on {} x {}", kind, world().size() / tp, tp);
      const double loss = largest_difference(one, several), weights = weight_difference(one, several);
      EXPECT_NEAR(one.loss[0], several.loss[0], 3e-6 * one.loss[0]) << what;
      EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << what;
      EXPECT_LT(loss, allowed_drift(kind, updates).loss) << what;
      EXPECT_LT(weights, allowed_drift(kind, updates).weights) << what;
    }
  }
}

// Before sorted bases part ways over many refreshes the weights themselves agree. Data-parallel ranks whose parts of
// the tree are aligned change no bit.
TYPED_TEST(Grids, WeightsAgreeThroughTheFirstRefresh) {
  for (const std::string& kind : every_kind()) {
    const Trained& one = this->of(kind, 0, this->first_refresh);
    for (const int tp : tensor_sizes()) {
      const Trained& several = this->of(kind, tp, this->first_refresh);
      const std::string what = fmt::format("{} on {} x {}", kind, world().size() / tp, tp);
      EXPECT_LT(largest_difference(one, several), allowed_drift(kind, this->first_refresh).loss) << what;
      EXPECT_LT(weight_difference(one, several), allowed_drift(kind, this->first_refresh).weights) << what;
      if (tp == 1 && world().size() == 6) {
        EXPECT_EQ(one.weights, several.weights) << what;
      }
    }
  }
}

TYPED_TEST(Grids, EveryFamilyAgreesWithOneRank) {
  const int updates = world().size() == 2 ? 20 : 5;
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt}) {
    const Trained one = train_alone<float, TypeParam>(alone(grid_case("muon", 1, family)), updates);
    for (const int tp : tensor_sizes())
      for (const bool sequence_parallel : {true, false}) {
        TrainingCase run = grid_case("muon", tp, family);
        run.options.parallel.sequence_parallel = sequence_parallel;
        const Trained several = train_together<float, TypeParam>(run, updates);
        const std::string what =
            fmt::format("family {}, tp {}, sequence parallel {}", static_cast<int>(family), tp, sequence_parallel);
        EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << what;
        EXPECT_LT(largest_difference(one, several), 1e-3) << what;
      }
  }
}

// An MLP that the ranks do not divide, wherever its matrices are updated.
TYPED_TEST(Grids, UnevenPartsAgreeWithOneRank) {
  using Partition = ParallelOptions::Partition;
  const int updates = world().size() == 2 ? 9 : 5;
  for (const std::int64_t size : uneven_sizes)
    for (const char* kind : {"adamw", "muon", "normuon", "soap"}) {
      const Trained one = train_alone<float, TypeParam>(alone(uneven(grid_case(kind, 1), size)), updates);
      const bool in_shards = find_matrix_kind(kind) && find_matrix_kind(kind)->shard_work;
      for (const int tp : tensor_sizes())
        for (const auto& [update, partition, split] :
             {std::tuple(TpUpdate::home, Partition::optimal, true), std::tuple(TpUpdate::home, Partition::groups, true),
              std::tuple(TpUpdate::duplicated, Partition::balanced, false),
              std::tuple(TpUpdate::distributed, Partition::optimal, true)}) {
          if (tp == 1 || (update == TpUpdate::distributed && !in_shards)) continue;
          if (partition == Partition::groups && find_matrix_kind(kind) == nullptr) continue;
          TrainingCase run = uneven(grid_case(kind, tp), size);
          run.options.parallel.tp_update = update;
          run.options.parallel.partition = partition;
          run.options.parallel.sequence_parallel = split;
          const Trained several = train_together<float, TypeParam>(run, updates);
          const std::string what = fmt::format("{} with {} columns, tp {}, tp_update {}, partition {}", kind, size, tp,
                                               static_cast<int>(update), static_cast<int>(partition));
          EXPECT_NEAR(one.loss[0], several.loss[0], 3e-6 * one.loss[0]) << what;
          EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << what;
          // As for shares of other matrices (test_matrix_shares.cpp), which are too few for their roundings to cancel.
          EXPECT_LT(largest_difference(one, several), 5 * allowed_drift(kind, updates).loss) << what;
          EXPECT_LT(weight_difference(one, several), allowed_drift(kind, updates).weights) << what;
        }
    }
}

TYPED_TEST(Grids, EveryOptimizerOfExpertsAgreesWithOneRank) {
  for (const std::string& kind : every_kind()) {
    const Trained one = train_alone<float, TypeParam>(alone(grid_case(kind, 1, Family::qwen3_moe)), 5);
    const Trained several = train_together<float, TypeParam>(grid_case(kind, 1, Family::qwen3_moe), 5);
    EXPECT_NEAR(one.loss[0], several.loss[0], 3e-6 * one.loss[0]) << kind;
    EXPECT_LT(largest_difference(one, several), 1e-3) << kind;  // rounding may change the choice of an expert
    if (world().size() == 6) EXPECT_EQ(one.weights, several.weights) << kind;
  }
}

// Query heads with keys and values of their own, and keys and values that are shared by several or lie on several
// ranks; biases; wherever the matrices are updated. Most heads are scaled in each update.
TYPED_TEST(Grids, ClippedHeadsAgreeWithOneRank) {
  using Partition = ParallelOptions::Partition;
  for (const auto& [family, kv_heads] : {std::pair(Family::llama, 2), std::pair(Family::gpt, 6)}) {
    const auto clipped = [family = family, kv_heads = kv_heads](int tp) {
      TrainingCase run = grid_case("muon", tp, family);
      run.options.model.num_key_value_heads = kv_heads;
      run.options.optimizer.qk_clip = 0.01;
      return run;
    };
    const Trained one = train_alone<float, TypeParam>(alone(clipped(1)), 5);
    TrainingCase plain = clipped(1);
    plain.options.optimizer.qk_clip = 0;
    EXPECT_GT(weight_difference(one, train_alone<float, TypeParam>(alone(plain), 5)), 0.01);
    for (const int tp : tensor_sizes())
      for (const auto& [update, partition] :
           {std::pair(TpUpdate::home, Partition::optimal), std::pair(TpUpdate::duplicated, Partition::optimal),
            std::pair(TpUpdate::distributed, Partition::optimal), std::pair(TpUpdate::home, Partition::groups)}) {
        if (kv_heads % tp != 0 && tp % kv_heads != 0) continue;
        if (tp == 1 && update != TpUpdate::home) continue;
        TrainingCase run = clipped(tp);
        run.options.parallel.tp_update = update;
        run.options.parallel.partition = partition;
        const Trained several = train_together<float, TypeParam>(run, 5);
        const std::string what =
            fmt::format("family {}, {} kv heads, tp {}, tp_update {}, partition {}", static_cast<int>(family), kv_heads,
                        tp, static_cast<int>(update), static_cast<int>(partition));
        EXPECT_LT(largest_difference(one, several), 1e-6) << what;
        EXPECT_LT(weight_difference(one, several), 5e-5) << what;
      }
  }
}

// The rounded weights that ranks compute with are those of the scaled ones.
TYPED_TEST(Grids, ClippedHeadsAgreeInBf16) {
  TrainingCase run = grid_case("muon", 1);
  run.options.optimizer.qk_clip = 0.01;
  const Trained one = train_alone<bf16, TypeParam>(alone(run), 6);
  for (const int tp : tensor_sizes())
    for (const auto partition : {ParallelOptions::Partition::optimal, ParallelOptions::Partition::groups}) {
      TrainingCase several = grid_case("muon", tp);
      several.options.optimizer.qk_clip = 0.01;
      several.options.parallel.partition = partition;
      const Trained trained = train_together<bf16, TypeParam>(several, 6);
      EXPECT_LT(largest_difference(one, trained), 0.01) << tp;
      EXPECT_LT(weight_difference(one, trained), 0.05) << tp;
    }
}

// The usual mode: gradients that lie side by side are one product, and micro-batches are added in order.
TYPED_TEST(Grids, AgreeWithoutDeterminismToo) {
  TrainingCase usual = grid_case("muon", 1);
  usual.options.run.deterministic = false;
  const Trained one = train_alone<float, TypeParam>(alone(usual), 20);
  for (const int tp : tensor_sizes()) {
    TrainingCase run = grid_case("muon", tp);
    run.options.run.deterministic = false;
    const Trained several = train_together<float, TypeParam>(run, 20);
    EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << tp;
    EXPECT_LT(largest_difference(one, several), 1e-5) << tp;
  }
}

// Each shard as a matrix by itself: another algorithm, but the same numbers on all ranks, and one that trains.
TYPED_TEST(Grids, BlockwiseUpdatesTrain) {
  for (const char* kind : {"muon", "soap"})
    for (const std::int64_t size : {84, 83}) {
      TrainingCase run = uneven(grid_case(kind, tensor_sizes().back()), size), home_run = run;
      run.options.parallel.tp_update = TpUpdate::blockwise;
      const Trained trained = train_together<float, TypeParam>(run, 30),
                    home = train_together<float, TypeParam>(home_run, 30);
      EXPECT_EQ(trained.loss[0], home.loss[0]) << kind;
      EXPECT_NE(trained.loss.back(), home.loss.back()) << kind;
      EXPECT_LT(trained.loss.back(), 0.93 * trained.loss.front()) << kind;
    }
}

// The update is computed from the same whole gradients, at one place or at all.
TYPED_TEST(Grids, HomeEqualsDuplicatedBitForBit) {
  const int updates = this->some();
  for (const std::string& kind : kind_names())
    for (const int tp : tensor_sizes()) {
      if (tp == 1) continue;
      TrainingCase duplicated = grid_case(kind, tp);
      duplicated.options.parallel.tp_update = TpUpdate::duplicated;
      const Trained& a = this->of(kind, tp, updates);
      const Trained b = train_together<float, TypeParam>(duplicated, updates);
      EXPECT_EQ(a.loss, b.loss) << kind << ", tp " << tp;
      EXPECT_EQ(a.weights, b.weights) << kind << ", tp " << tp;
    }
  TrainingCase home = grid_case("muon", tensor_sizes().back()), duplicated = home;
  duplicated.options.parallel.tp_update = TpUpdate::duplicated;
  const Trained a = train_together<bf16, TypeParam>(home, updates),
                b = train_together<bf16, TypeParam>(duplicated, updates);
  EXPECT_EQ(a.weights, b.weights);
}

// Who owns what changes no bit under tensor parallelism either.
TYPED_TEST(Grids, EveryPartitionGivesTheSameNumbers) {
  TrainingCase two = grid_case("muon", 2), other = two;
  other.options.parallel.partition = ParallelOptions::Partition::replicated;
  const Trained a = train_together<float, TypeParam>(two, 6), b = train_together<float, TypeParam>(other, 6);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.weights, b.weights);
}

}  // namespace
}  // namespace sestina

// Matrices cut into blocks on several ranks: the same numbers as on one, whole blocks at their homes, slabs that are
// cut by themselves, planned bytes, and replicas that drift and are made equal again.
#include <gtest/gtest.h>

#include "regression/unit/mpi/coherence_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

// Sides of 48 and 80 or 84, in blocks of at most 32.
TrainingCase cut(TrainingCase run) {
  run.options.optimizer.matrix->set("max_dim", 32);
  return run;
}

// Ranks: BlockRanks 2 4

// Data-parallel ranks, whose parts of the tree are aligned, change no bit; neither does it matter who is home.
TEST(BlockRanks, AgreeWithOneRank) {
  for (const std::string& kind : cut_kind_names()) {
    TrainingCase data = cut(training_case(kind));
    const Trained one = train_alone<float>(data, 6);
    data.options.parallel.dp = world().size();
    data.options.parallel.bucket_elements = 20000;
    const Trained several = train_together<float>(data, 6);
    EXPECT_EQ(several.loss, one.loss) << kind;
    EXPECT_EQ(several.weights, one.weights) << kind;

    TrainingCase home = cut(grid_case(kind, 2)), duplicated = home;
    const Trained alone_again = train_alone<float>(alone(home), 5), split = train_together<float>(home, 5);
    EXPECT_LT(largest_difference(alone_again, split), allowed_drift(kind, 5).loss) << kind;
    EXPECT_LT(weight_difference(alone_again, split), allowed_drift(kind, 5).weights) << kind;
    duplicated.options.parallel.tp_update = TpUpdate::duplicated;
    EXPECT_EQ(train_together<float>(duplicated, 5).weights, split.weights) << kind;
  }
}

// The rounded copies too, which a home makes of whole matrices and sends by shards.
TEST(BlockRanks, AgreeInBf16) {
  TrainingCase home = cut(grid_case("kl-soap", 2)), duplicated = home;
  duplicated.options.parallel.tp_update = TpUpdate::duplicated;
  const Trained split = train_together<bf16>(home, 6), one = train_alone<bf16>(alone(home), 6);
  EXPECT_EQ(train_together<bf16>(duplicated, 6).weights, split.weights);
  EXPECT_LT(largest_difference(one, split), 1e-3);
}

// A call that only sets up bases leaves the weights as they were, at homes too, where the memory that is sent holds the
// matrices of several groups in turn.
TEST(BlockRanks, WeightsStayInACallThatMovesNothing) {
  for (const std::string& kind : asynchronous_kinds()) {
    const TrainingCase home = grid_case(kind, 2);
    const Trained split = train_together<bf16>(home, 2), one = train_alone<bf16>(alone(home), 2);
    EXPECT_LT(largest_difference(one, split), 1e-4) << kind;
  }
}

// Each shard is cut by itself: another algorithm, which trains.
TEST(BlockRanks, BlockwiseShardsAreCutByThemselves) {
  TrainingCase run = cut(grid_case("soap", 2)), home = run;
  run.options.parallel.tp_update = TpUpdate::blockwise;
  run.options.optimizer.per_head = home.options.optimizer.per_head = true;  // heads of q, k, v are whole
  const Trained trained = train_together<float>(run, 30), whole = train_together<float>(home, 30);
  EXPECT_EQ(trained.loss[0], whole.loss[0]);
  EXPECT_NE(trained.loss.back(), whole.loss.back());
  EXPECT_LT(trained.loss.back(), 0.95 * trained.loss.front()) << whole.loss.back();
}

// Where the elements of a field lie in its memory.
std::vector<std::size_t> places_of(const StateField& field) {
  const std::int64_t cols = field.shape[1], apart = field.row_stride > 0 ? field.row_stride : cols;
  std::vector<std::size_t> places;
  for (std::int64_t i = 0; i < field.shape[0]; ++i)
    for (std::int64_t j = 0; j < cols; ++j) places.push_back(static_cast<std::size_t>(i * apart + j));
  return places;
}

// Replicas that differ are the same bits after a synchronisation, and the bytes of it are the plan's.
TEST(BlockRanks, ReplicasAreMadeEqual) {
  for (const char* kind : {"soap", "kl-shampoo"}) {
    const TrainingCase run = cut(drifting(kind, 0));
    TypedExecutor<Host, bf16> executor(Host(), make_plan({run.options, world().size()}), world());
    executor.initialise(5);
    executor.weights_changed();
    Trained result;
    train_steps(executor, run.options, 0, 6, result);
    executor.synchronise();
    executor.take_coherence();
    train_steps(executor, run.options, 6, 10, result);  // a job of every matrix was sent
    MatrixSet<Host>& matrices = *executor.stage().optimizer().matrices();
    const float factor = 1.0f + 0.01f * static_cast<float>(world().rank());
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const StateField master = matrices.replica(i).back();
      const auto bytes = write_to(master);
      for (const std::size_t place : places_of(master)) reinterpret_cast<float*>(bytes.view())[place] *= factor;
    }
    executor.synchronise();
    const CoherenceCount count = executor.take_coherence();
    const CoherencePlan& plan = executor.plan().coherence;
    ASSERT_GT(count.blocks, 0) << kind;
    EXPECT_EQ(count.blocks % plan.blocks, 0) << kind;
    EXPECT_GT(count.drift, 1e-3) << kind;
    EXPECT_EQ(summed(static_cast<double>(count.bytes.sent)),
              static_cast<double>(count.blocks / plan.blocks * plan.synchronisation.sent))
        << kind;
    EXPECT_TRUE(all_equal(bytes_of(whole_weights(executor)))) << kind;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const StateField master = matrices.replica(i).back();
      std::vector<float> values;
      for (const std::size_t place : places_of(master)) values.push_back(static_cast<const float*>(master.data)[place]);
      EXPECT_TRUE(all_equal(bytes_of(values))) << kind << ' ' << master.path;
    }
  }
}

}  // namespace
}  // namespace sestina

// Measured rotations on all layouts against those of one rank, and updates that have the same bits measured or not.
#include <gtest/gtest.h>


#include "app/train/rotation_lines.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Merged after the third update, before which it is measured.
TrainingCase rotated_case(int tp) {
  TrainingCase run = training_case("adamw", Family::llama);
  Options& o = run.options;
  o.model.num_key_value_heads = 4;
  o.model.num_hidden_layers = 4;
  o.model.intermediate_size = 96;
  o.data.sequence_length = o.model.max_position_embeddings = 13;
  o.model.linear.form = "poet-x";
  o.model.linear.block_size = 4;
  o.model.linear.shards = 4;
  o.model.linear.merge_every = 3;
  o.metrics.rotations_every = 3;
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / tp;
  o.parallel.bucket_elements = 20000;
  return run;
}

template <class T>
RotationLines rotations_of(Communicator& ranks, const TrainingCase& run, Trained& result) {
  const Plan plan = make_plan({run.options, ranks.size()});
  TypedExecutor<Host, T> session(Host(), plan, ranks);
  session.initialise(5);
  train_steps(session, run.options, 0, 3, result);
  return gather_rotations(ranks, session.runs(), plan);
}

template <class T>
RotationLines rotations_of(Communicator& ranks, const TrainingCase& run) {
  Trained ignored;
  return rotations_of<T>(ranks, run, ignored);
}

template <class T>
RotationLines rotations_of_one(const TrainingCase& run) {
  const auto lone = make_lone_communicator();
  return rotations_of<T>(*lone, alone(run));
}

// Weights of ranks that sum in another order drift as those of FormedTensor. Defects are small differences of large
// sums, of which blocks of four leave some eps.
void expect_equal(const RotationLines& some, const RotationLines& one, double apart, const std::string& what) {
  ASSERT_EQ(some.lines.size(), 7u) << what;
  ASSERT_EQ(one.lines.size(), 7u) << what;
  EXPECT_EQ(some.furthest, one.furthest) << what;
  EXPECT_NEAR(some.largest_q, one.largest_q, apart * one.largest_q) << what;
  for (std::size_t i = 0; i < one.lines.size(); ++i) {
    const Metrics::RotationLine &a = some.lines[i], &b = one.lines[i];
    const std::string which = what + ": " + b.pattern;
    EXPECT_EQ(a.pattern, b.pattern) << which;
    EXPECT_GT(b.largest_q, 1e-4) << which;
    EXPECT_NEAR(a.largest_q, b.largest_q, apart * b.largest_q) << which;
    EXPECT_NEAR(a.defect, b.defect, apart) << which;
    EXPECT_NEAR(a.sigma_max, b.sigma_max, apart * b.sigma_max) << which;
    EXPECT_NEAR(a.sigma_min, b.sigma_min, apart * b.sigma_max) << which;
    EXPECT_NEAR(a.sigma_rms, b.sigma_rms, apart * b.sigma_rms) << which;
    ASSERT_EQ(a.layers.size(), 4u) << which;
    for (std::size_t layer = 0; layer < a.layers.size(); ++layer)
      EXPECT_NEAR(a.layers[layer], b.layers[layer], apart * b.largest_q) << which << ", layer " << layer;
  }
}

// Ranks: RotationsOn 2 4

TEST(RotationsOn, DataAndTensorParallelRanks) {
  for (int tp = 1; tp <= world().size(); tp *= 2) {
    const TrainingCase run = rotated_case(tp);
    const RotationLines one = rotations_of_one<float>(run);
    expect_equal(rotations_of<float>(world(), run), one, 1e-3, fmt::format("tp {}", tp));
  }
}

TEST(RotationsOn, PipelineStages) {
  for (const auto schedule : {ParallelOptions::Schedule::one_f_one_b, ParallelOptions::Schedule::async_1f1b}) {
    TrainingCase run = rotated_case(1);
    run.options.train.global_batch = 4;
    run.options.train.micro_batch = 1;
    run.options.parallel.dp = world().size() / 2;
    run.options.parallel.pp = 2;
    const RotationLines one = rotations_of_one<bf16>(run);
    const bool late = schedule == ParallelOptions::Schedule::async_1f1b;
    run.options.parallel.schedule = schedule;
    if (late) run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
    const RotationLines some = rotations_of<bf16>(world(), run);
    if (!late) {
      expect_equal(some, one, 1e-2, "pipeline");
      continue;
    }
    ASSERT_EQ(some.lines.size(), one.lines.size());  // other updates than those of one rank, of about the same size
    for (std::size_t i = 0; i < one.lines.size(); ++i) EXPECT_GT(some.lines[i].largest_q, 0.1 * one.lines[i].largest_q);
  }
}

// What a run with a bound on rotations leaves: the layers that were merged early after each update, and all else.
struct BoundedRun {
  std::vector<std::vector<EarlyMerge>> merges;  // by update
  Trained trained;
};

template <class T>
BoundedRun bounded_run(Communicator& ranks, const TrainingCase& run) {
  TypedExecutor<Host, T> session(Host(), make_plan({run.options, ranks.size()}), ranks);
  session.initialise(5);
  BoundedRun result;
  for (int t = 0; t < 5; ++t) {
    train_steps(session, run.options, t, t + 1, result.trained);
    result.merges.push_back(gather_early_merges(ranks, session.runs()));
  }
  return result;
}

// Looked at after updates 2 and 4: the layers, and the weights that turned furthest in them, are those of one rank, and
// so is what follows, with the drift of ranks that sum in another order.
TEST(RotationsOn, LayersThatAreMergedEarly) {
  TrainingCase run = rotated_case(1);
  run.options.model.linear.merge_every = 100;
  run.options.model.linear.merge_bound_every = 2;
  run.options.metrics.rotations_every = 0;
  run.options.model.linear.merge_bound = 1e-9;  // all layers
  const BoundedRun all = bounded_run<float>(*make_lone_communicator(), alone(run));
  ASSERT_EQ(all.merges.at(1).size(), 4u);
  double sum = 0;
  for (const EarlyMerge& merge : all.merges[1]) sum += merge.largest_q;
  run.options.model.linear.merge_bound = sum / 4;  // some of them
  const BoundedRun one = bounded_run<float>(*make_lone_communicator(), alone(run));
  ASSERT_GT(one.merges[1].size(), 0u);
  ASSERT_LT(one.merges[1].size(), 4u);
  for (const int odd : {0, 2, 4}) EXPECT_TRUE(one.merges.at(at(odd)).empty());
  const std::vector<std::pair<int, int>> grids = {{1, 1}, {2, 1}, {1, 2}};  // tp, pp
  for (const auto& [tp, pp] : grids) {
    const std::string what = fmt::format("tp {} pp {}", tp, pp);
    run.options.parallel.tp = tp;
    run.options.parallel.pp = pp;
    run.options.parallel.dp = world().size() / (tp * pp);
    run.options.parallel.schedule = ParallelOptions::Schedule::one_f_one_b;
    const BoundedRun some = bounded_run<float>(world(), run);
    for (std::size_t t = 0; t < 5; ++t) {
      ASSERT_EQ(some.merges[t].size(), one.merges[t].size()) << what << ", update " << t + 1;
      for (std::size_t i = 0; i < one.merges[t].size(); ++i) {
        EXPECT_EQ(some.merges[t][i].layer, one.merges[t][i].layer) << what;
        EXPECT_EQ(some.merges[t][i].weight, one.merges[t][i].weight) << what;
        EXPECT_NEAR(some.merges[t][i].largest_q, one.merges[t][i].largest_q, 1e-3 * one.merges[t][i].largest_q) << what;
      }
      EXPECT_NEAR(some.trained.loss[t], one.trained.loss[t], 1e-5 * one.trained.loss[t])
          << what << ", update " << t + 1;
    }
  }
}

TEST(RotationsOn, AMeasureChangesNoBit) {
  TrainingCase run = rotated_case(world().size() == 4 ? 2 : 1);
  Trained measured, plain;
  rotations_of<float>(world(), run, measured);
  run.options.metrics.rotations_every = 0;
  EXPECT_TRUE(rotations_of<float>(world(), run, plain).lines.empty());
  EXPECT_EQ(measured.loss, plain.loss);
  EXPECT_EQ(measured.norm, plain.norm);
}

}  // namespace
}  // namespace sestina

// How late gradients are, and how far weights move meanwhile, as the executor tells it: against weights that the test
// keeps itself, and on several ranks against one process.
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: StageDelays 2 4

using ByUpdate = std::vector<StageDelays>;

void add_delays(std::span<const FinishedStep> steps, ByUpdate& seen) {
  for (const FinishedStep& step : steps) seen.push_back(step.delays);
}

std::vector<double> stage_weights(TypedExecutor<Host, float>& executor, std::size_t stage) {
  const auto& arena = executor.stage(stage).arena();
  std::vector<double> all;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const float* data = arena.specs()[i].is_vector() ? arena.vector(i) : arena.matrix(i);
    all.insert(all.end(), data, data + arena.specs()[i].elements());
  }
  return all;
}

double relative_distance(const std::vector<double>& newest, const std::vector<double>& used) {
  double moved = 0, weight = 0;
  for (std::size_t i = 0; i < newest.size(); ++i) {
    moved += std::pow(newest[i] - used[i], 2);
    weight += std::pow(newest[i], 2);
  }
  return std::sqrt(moved / weight);
}

ByUpdate delays_of(Communicator& ranks, const TrainingCase& run, int steps) {
  TypedExecutor<Host, float> executor(Host(), make_plan({run.options, ranks.size()}), ranks);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  SampleBatches batches(run.options, executor.share(), 0);
  ByUpdate seen;
  for (int t = 1; t <= steps; ++t) add_delays(take_step(executor, t, batches), seen);
  add_delays(executor.finish_steps(), seen);
  return seen;
}

ByUpdate delays_in_one_process(const TrainingCase& run, int steps) {
  const auto alone = make_lone_communicator();
  return delays_of(*alone, run, steps);
}

// Four stages, one micro-batch an update: stage s is 3 - s updates late once the pipeline is full. Sums of squares of
// thousands of doubles in two orders differ by far less than 1e-12 of themselves.
TEST(StageDelays, AreThoseOfTheWeightsThatWereUsed) {
  TrainingCase run = corrected_case(Correction::none, "muon", 8);
  run.options.metrics.every = 2;
  const auto alone = make_lone_communicator();
  TypedExecutor<Host, float> executor(Host(), make_plan({run.options, alone->size()}), *alone);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  SampleBatches batches(run.options, executor.share(), 0);
  ByUpdate all;
  constexpr int steps = 8;
  std::vector<std::vector<std::vector<double>>> weights;  // by version and stage
  for (int t = 0; t <= steps; ++t) {
    if (t > 0) add_delays(take_step(executor, t, batches), all);
    weights.emplace_back();
    for (std::size_t s = 0; s < 4; ++s) weights.back().push_back(stage_weights(executor, s));
  }
  add_delays(executor.finish_steps(), all);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(steps));
  for (int t = 1; t <= steps; ++t)
    for (int s = 0; s < 4; ++s) {
      const StageDelays& seen = all[at(t - 1)];
      const int late = std::min(t - 1, 3 - s);
      EXPECT_EQ(seen.updates[at(s)], late) << "update " << t << ", stage " << s;
      if (t % 2 != 0) continue;
      const double drift = relative_distance(weights[at(t - 1)][at(s)], weights[at(t - 1 - late)][at(s)]);
      EXPECT_NEAR(seen.drift[at(s)], drift, 1e-12 * drift) << "update " << t << ", stage " << s;
      EXPECT_EQ(drift > 0, late > 0);
    }
}

// Two micro-batches an update make the delay shorter; a drain begins it again.
TEST(StageDelays, FollowAccumulationAndDrains) {
  TrainingCase run = corrected_case(Correction::none, "adamw", 4);
  run.options.parallel.drain_every = 4;
  const ByUpdate seen = delays_in_one_process(run, 6);
  const double expected[][4] = {{0, 0, 0, 0}, {1, 1, 1, 0}, {2, 1, 1, 0}, {2, 1, 1, 0}, {0, 0, 0, 0}, {1, 1, 1, 0}};
  for (int t = 0; t < 6; ++t)
    for (int s = 0; s < 4; ++s) EXPECT_EQ(seen[at(t)].updates[at(s)], expected[t][s]) << "update " << t + 1;
}

// Older weights are not there without a stash: the drift is not known, but for the stage without delay. With predicted
// weights it is the error of the prediction.
TEST(StageDelays, SayWhatIsNotKnown) {
  TrainingCase run = corrected_case(Correction::none, "adamw", 8);
  run.options.metrics.every = 1;
  const double plain = delays_in_one_process(run, 6).back().drift[0];
  run.options.parallel.stash = Stash::recompute;
  const StageDelays newest = delays_in_one_process(run, 6).back();
  EXPECT_EQ(newest.updates[0], 3);
  for (int s = 0; s < 3; ++s) EXPECT_TRUE(std::isnan(newest.drift[at(s)]));
  EXPECT_EQ(newest.drift[3], 0);
  TrainingCase predicted = corrected_case(Correction::prediction, "adamw", 8);
  predicted.options.metrics.every = 1;
  const double error = delays_in_one_process(predicted, 6).back().drift[0];
  EXPECT_GT(error, 0);
  EXPECT_NE(error, plain);
}

// Pipeline ranks, and data-parallel ranks in a stage, are told what one process finds, to the bit; tensor-parallel
// ranks add up their parts of weights that are rounded in another order.
TEST(StageDelays, AreTheSameOnSeveralRanks) {
  TrainingCase run = corrected_case(Correction::none, "muon", 8);
  run.options.metrics.every = 3;
  const ByUpdate one = delays_in_one_process(run, 7), ranks = delays_of(world(), run, 7);
  ASSERT_EQ(ranks.size(), one.size());
  for (std::size_t t = 0; t < one.size(); ++t) {
    EXPECT_EQ(ranks[t].updates, one[t].updates);
    if ((t + 1) % 3 == 0) EXPECT_EQ(ranks[t].drift, one[t].drift);
  }
  if (world().size() != 4) return;
  TrainingCase sharded = run;
  sharded.options.parallel.tp = 2;
  const ByUpdate parts = delays_of(world(), sharded, 7);
  for (int s = 0; s < 4; ++s) EXPECT_NEAR(parts[5].drift[at(s)], one[5].drift[at(s)], 1e-4 * one[5].drift[at(s)]);
}

// The gradient that a synchronous executor finds for the same samples at the weights as they are, in the order of the
// tensors of all stages.
std::vector<std::vector<double>> gradients_of(TypedExecutor<Host, float>& executor) {
  std::vector<std::vector<double>> all;
  for (std::size_t s = 0; s < executor.stage_count(); ++s) {
    const auto gradients = executor.stage(s).arena().gradients();
    all.emplace_back(gradients.data(), gradients.data() + gradients.size());
  }
  return all;
}

double cosine_of(const std::vector<double>& x, const std::vector<double>& y) {
  double product = 0, squares = 0, others = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    product += x[i] * y[i];
    squares += x[i] * x[i];
    others += y[i] * y[i];
  }
  return product / std::sqrt(squares * others);
}

// Against another executor without delay (1f1b), which is given the weights of the late one before each update. Both
// leave their gradients behind an update as they were: its clip is no part of them. Micro-batches of 4: two an update,
// whose sum is taken as in training, deterministic or not.
TEST(StageDelays, CosineIsThatOfTheGradientAtTheNewestWeights) {
  for (const bool deterministic : {false, true}) {
    TrainingCase run = corrected_case(Correction::none, "adamw", 4);
    run.options.run.deterministic = deterministic;
    const Trained plain = train_in_one_process(run, 6);
    run.options.metrics.tensors_every = 1;
    expect_same(plain, train_in_one_process(run, 6), "the same training");
    TrainingCase synchronous = run;
    synchronous.options.parallel.schedule = Kind::one_f_one_b;
    const auto alone = make_lone_communicator();
    TypedExecutor<Host, float> late(Host(), make_plan({run.options, alone->size()}), *alone),
        newest(Host(), make_plan({synchronous.options, alone->size()}), *alone);
    late.initialise(5);
    late.weights_changed();
    late.start_at(0);
    SampleBatches all_samples(run.options, late.share(), 0);
    ByUpdate seen;
    std::vector<std::vector<double>> expected;
    for (int t = 1; t <= 6; ++t) {
      SavedState weights;
      save(late, late.model_fields(), weights);
      restore(newest, newest.model_fields(), weights);
      newest.weights_changed();
      SampleBatches samples(synchronous.options, newest.share(), t - 1);
      take_step(newest, t, samples);
      add_delays(take_step(late, t, all_samples), seen);
      const auto stale = gradients_of(late), fresh = gradients_of(newest);
      expected.emplace_back();
      for (std::size_t s = 0; s < 4; ++s) expected.back().push_back(cosine_of(stale[s], fresh[s]));
    }
    add_delays(late.finish_steps(), seen);
    double least = 1;
    for (std::size_t t = 0; t < 6; ++t)
      for (std::size_t s = 0; s < 4; ++s) {
        EXPECT_NEAR(seen[t].cosine[s], expected[t][s], 1e-6) << "update " << t + 1 << ", stage " << s;
        least = std::min(least, expected[t][s]);
      }
    EXPECT_NEAR(seen[0].cosine[0], 1, 1e-6);  // nothing is late yet
    EXPECT_LT(least, 0.999);
  }
}

// On several ranks nobody has all stages: not known.
TEST(StageDelays, CosineIsNotKnownOnSeveralRanks) {
  TrainingCase run = corrected_case(Correction::none, "adamw", 8);
  run.options.metrics.tensors_every = 1;
  for (const StageDelays& seen : delays_of(world(), run, 3))
    for (const double cosine : seen.cosine) EXPECT_TRUE(std::isnan(cosine));
}

}  // namespace
}  // namespace sestina

// Averages of weights on several ranks: the mean of train.ema_tau next to every weight, wherever it is owned, and
// schedule-free's average, at which the model is evaluated between updates; and weights that move on before the passes
// of an update (train.lookahead).
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Ranks: Averages 2 4

// The values of this rank's fields whose paths end so, by the name of their tensor and the first row and column.
std::map<std::string, std::vector<float>> values_at(const Executor& run, const std::vector<StateField>& fields,
                                                    const std::string& begin, const std::string& end) {
  std::map<std::string, std::vector<float>> values;
  for (const StateField& field : fields) {
    if (!field.path.starts_with(begin) || !field.path.ends_with(end)) continue;
    const std::string tensor = field.path.substr(begin.size(), field.path.size() - begin.size() - end.size());
    std::vector<float>& here = values[fmt::format("{} {} {}", tensor, field.row_begin, field.col_begin)];
    here.resize(field.bytes() / sizeof(float));
    run.copy_to_host(field, here.data());
  }
  return values;
}

// Each mean is that of a loop over the weights that this rank keeps, after every update.
void expect_means(TrainingCase run, const std::string& what) {
  constexpr double tau = 3;
  run.options.train.ema_tau = tau;
  TypedExecutor<Host, float> executor(Host(), make_plan({run.options, world().size()}), world());
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  SampleBatches batches(run.options, executor.share(), 0);
  std::map<std::string, std::vector<double>> plain;
  for (int t = 1; t <= 5; ++t) {
    take_step(executor, t, batches);
    executor.finish_gather();
    const auto weights = values_at(executor, executor.model_fields(), "/model/", "");
    const auto means = values_at(executor, executor.optimizer_fields(), "/optimizer/", "/ema");
    ASSERT_EQ(weights.size(), means.size()) << what;
    for (const auto& [tensor, now] : weights) {
      std::vector<double>& mean = plain[tensor];
      mean.resize(now.size());
      ASSERT_EQ(means.at(tensor).size(), now.size()) << what << ", " << tensor;
      for (std::size_t i = 0; i < now.size(); ++i) {
        mean[i] = t == 1 ? now[i] : mean[i] + (now[i] - mean[i]) / tau;
        ASSERT_NEAR(means.at(tensor)[i], mean[i], 1e-6) << what << ", " << tensor << ", update " << t;
      }
    }
  }
  executor.finish_steps();
}

TEST(Averages, MeansFollowTheWeightsThatARankKeeps) {
  for (const char* kind : {"lion", "muon"}) {
    for (const int tp : {1, 2}) expect_means(grid_case(kind, tp), fmt::format("{}, tp {}", kind, tp));
    TrainingCase shards = grid_case(kind, 2);
    shards.options.parallel.tp_update =
        std::string(kind) == "muon" ? ParallelOptions::TpUpdate::distributed : ParallelOptions::TpUpdate::blockwise;
    expect_means(shards, fmt::format("{} in shards", kind));
    for (const Kind schedule : {Kind::one_f_one_b, Kind::async_1f1b})
      expect_means(in_stages(pipeline_case(kind), schedule), fmt::format("{} in stages", kind));
  }
}

// Training with train.lookahead is training without it, where the weights are moved on by hand before every update, by
// the published rule (core/optimizer/lookahead.hpp): on every layout, to the bit.
void expect_moved_by_hand(TrainingCase run, const std::string& what) {
  TrainingCase plain = run;
  run.options.train.lookahead = {.factor = 0.5, .ema = 0.5, .from = 1, .until = 4};
  TypedExecutor<Host, float> ahead(Host(), make_plan({run.options, world().size()}), world());
  TypedExecutor<Host, float> by_hand(Host(), make_plan({plain.options, world().size()}), world());
  for (Executor* executor : {static_cast<Executor*>(&ahead), static_cast<Executor*>(&by_hand)}) {
    executor->initialise(5);
    executor->weights_changed();
    executor->start_at(0);
  }
  SampleBatches batches(run.options, ahead.share(), 0), same(plain.options, by_hand.share(), 0);
  std::map<std::string, std::vector<float>> means;
  for (int t = 1; t <= 5; ++t) {
    take_step(ahead, t, batches);
    const auto before = values_at(by_hand, by_hand.model_fields(), "/model/", "");
    for (const StateField& field : by_hand.model_fields()) {
      const std::string key = fmt::format("{} {} {}", field.path.substr(7), field.row_begin, field.col_begin);
      std::vector<float> moved = before.at(key);
      std::vector<float>& mean = means[key];
      mean.resize(moved.size());
      if (t > 1 && t <= 4)
        for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += 0.5f * mean[i];
      by_hand.copy_from_host(field, moved.data());
    }
    by_hand.weights_changed();
    take_step(by_hand, t, same);
    ahead.finish_gather();
    by_hand.finish_gather();
    const auto weights = values_at(by_hand, by_hand.model_fields(), "/model/", "");
    EXPECT_TRUE(values_at(ahead, ahead.model_fields(), "/model/", "") == weights) << what << ", update " << t;
    for (auto& [key, mean] : means)
      for (std::size_t i = 0; i < mean.size(); ++i)  // halves: products are exact
        if (t <= 4) mean[i] = 0.5f * mean[i] + 0.5f * (weights.at(key)[i] - before.at(key)[i]);
    EXPECT_TRUE(values_at(ahead, ahead.optimizer_fields(), "/optimizer/", "/displacement") == means) << what;
  }
}

TEST(Averages, LookaheadMovesTheWeightsBeforeThePasses) {
  for (const char* kind : {"adamw", "muon"}) {
    for (const int tp : {1, 2}) expect_moved_by_hand(grid_case(kind, tp), fmt::format("{}, tp {}", kind, tp));
    TrainingCase shards = grid_case(kind, 2);
    shards.options.parallel.tp_update =
        std::string(kind) == "muon" ? ParallelOptions::TpUpdate::distributed : ParallelOptions::TpUpdate::blockwise;
    expect_moved_by_hand(shards, fmt::format("{} in shards", kind));
    TrainingCase replicated = grid_case(kind, 1);
    replicated.options.parallel.partition = ParallelOptions::Partition::replicated;
    expect_moved_by_hand(replicated, fmt::format("{} on every rank", kind));
    for (const Kind schedule : {Kind::one_f_one_b, Kind::zb_h1})
      expect_moved_by_hand(in_stages(pipeline_case(kind), schedule), fmt::format("{} in stages", kind));
  }
  TrainingCase tied = in_stages(pipeline_case("adamw"), Kind::one_f_one_b);
  tied.options.model.tie_word_embeddings = true;
  expect_moved_by_hand(tied, "tied stages");
}

// Losses of all updates are the bits of one rank's, and an update that is withdrawn leaves no trace.
TEST(Averages, LookaheadIsTheSameOnEveryNumberOfRanks) {
  TrainingCase run = training_case("adamw");
  run.options.train.lookahead = {.factor = 0.5, .ema = 0.5, .from = 1, .until = 4};
  run.options.parallel.dp = world().size();
  const auto lone = make_lone_communicator();
  const Trained one = train_on<float>(*lone, alone(run), 5);
  expect_same(train_together<float>(run, 5), one, "data-parallel");
  TypedExecutor<Host, float> executor(Host(), make_plan({run.options, world().size()}), world());
  executor.initialise(5);
  Trained trained;
  train_steps(executor, run.options, 0, 3, trained);
  SampleBatches refused(run.options, executor.share(), 9);
  EXPECT_TRUE(executor.backward(4, 1, refused).sums.has_value());
  executor.withdraw();
  train_steps(executor, run.options, 3, 5, trained);
  trained.weights = whole_weights(executor);
  expect_same(trained, one, "after an update that was withdrawn");
}

// Losses of an evaluation after every second update, the weights at the end, and those of the average.
struct Averaged {
  Trained trained;
  std::vector<double> evaluated;
  std::vector<float> average;
};
Averaged train_averaged(Communicator& ranks, const TrainingCase& run, bool evaluates) {
  TypedExecutor<Host, float> executor(Host(), make_plan({run.options, ranks.size()}), ranks);
  executor.initialise(5);
  executor.weights_changed();
  executor.start_at(0);
  SampleBatches batches(run.options, executor.share(), 0);
  std::vector<std::int32_t> tokens;
  for (int b = 0; b < executor.options().micro_batch; ++b)
    for (const std::int32_t token : sample_tokens(run.options, static_cast<std::uint64_t>(1000 + b)))
      tokens.push_back(token);
  Averaged result;
  for (int t = 1; t <= 6; ++t) {
    add_finished(run.options, take_step(executor, t, batches), result.trained);
    if (!evaluates || t % 2 != 0) continue;
    add_finished(run.options, executor.finish_steps(), result.trained);
    executor.swap_average();
    double loss = executor.loss({tokens.data(), nullptr});
    executor.pipeline().all_reduce(&loss, 1, Reduction::sum);
    result.evaluated.push_back(loss);
    executor.swap_average();
  }
  add_finished(run.options, executor.finish_steps(), result.trained);
  executor.finish_gather();
  result.trained.weights = whole_weights(executor);
  executor.swap_average();
  result.average = whole_weights(executor);
  return result;
}

// An evaluation at the average leaves no trace in the training, and finds what one rank finds.
TEST(Averages, ScheduleFreeIsEvaluatedAtItsAverage) {
  std::vector<std::pair<std::string, TrainingCase>> layouts;
  layouts.emplace_back("dp", training_case("schedule-free"));
  layouts.back().second.options.parallel.dp = world().size();
  layouts.emplace_back("tp", grid_case("schedule-free", 2));
  layouts.emplace_back("pp", in_stages(pipeline_case("schedule-free"), Kind::one_f_one_b));
  layouts.emplace_back("async", in_stages(pipeline_case("schedule-free"), Kind::async_1f1b));
  for (const auto& [what, run] : layouts) {
    const Averaged with = train_averaged(world(), run, true), without = train_averaged(world(), run, false);
    EXPECT_EQ(with.trained.loss, without.trained.loss) << what;
    EXPECT_TRUE(with.trained.weights == without.trained.weights) << what;
    EXPECT_TRUE(with.average == without.average) << what;
    EXPECT_FALSE(with.average == with.trained.weights) << what;
    if (what == "async") continue;  // one rank without stages has no delays
    const auto lone = make_lone_communicator();
    const Averaged one = train_averaged(*lone, alone(run), true);
    ASSERT_EQ(with.evaluated.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(with.evaluated[i], one.evaluated[i], 1e-6 * one.evaluated[i]) << what;
    Trained average, average_of_one;
    average.weights = with.average;
    average_of_one.weights = one.average;
    EXPECT_LT(weight_difference(average_of_one, average), 1e-5) << what;
  }
}

}  // namespace
}  // namespace sestina

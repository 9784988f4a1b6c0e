// The executor on stages that compute nothing and note what they are asked: the calls of an update and their order,
// without a model, an optimizer or a space to run in.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "parallel/step/executor.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

using Calls = std::vector<std::string>;

// Of one stage. Squares of its gradients are `square` in its first tensor, losses those that are given.
class NotedStage final : public PipelineStage {
 public:
  NotedStage(const StageParts& parts, Calls& calls) : place_(parts.place), plan_(parts.plan), calls_(calls) {
    squares_.resize(plan_.specs.size() + 1);
  }
  double square = 1, loss = 2;
  ClipScales scales;

  const StagePlace& place() const override { return place_; }
  const StagePlan& plan() const override { return plan_; }
  void load(std::int64_t micro, const BatchView&) override { note("load {}", micro); }
  void look_ahead(std::int64_t, double) override {}
  void look_back() override { note("look back"); }
  void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) override {
    note("expect {} {} {}", first, begin, end);
  }
  void start_receive(PipelineReceive::What, std::int64_t micro) override { note("receive {}", micro); }
  void forward(std::int64_t micro) override { note("forward {}", micro); }
  void backward(std::int64_t micro, double) override { note("backward {}", micro); }
  void backward_weight(std::int64_t micro) override { note("backward weight {}", micro); }
  double update_matrices(std::int64_t t, double factor, double clip) override {
    note("matrices {} at {} within {}", t, factor, clip);
    return 0;
  }
  void finish_gradients() override { note("finish gradients"); }
  std::span<const double> sum(std::span<double> losses) override {
    note("sum");
    std::fill(losses.begin(), losses.end(), loss);
    squares_.front() = square;
    return squares_;
  }
  void update(std::int64_t t, double factor, const ClipScales& clip) override {
    note("update {} at {}", t, factor);
    scales = clip;
  }
  void withhold() override { note("withhold"); }
  const StageDelay& delay() const override { return delay_; }
  void complete() override { note("complete"); }
  void finish_gather() override { note("finish gather"); }
  void synchronise() override { note("synchronise"); }
  void start_at(std::int64_t updates, std::int64_t origin) override {
    note("start at {}", updates);
    place_.origin = origin;
  }
  void start_corrections(bool read) override { note("start corrections {}", read); }
  std::vector<StateField> in_flight_fields(bool, bool) const override { return {}; }
  void restored() override { note("restored"); }
  void drop_in_flight() override { note("drop"); }
  void start_averages() override { note("start averages"); }
  void swap_average() override { note("swap average"); }
  std::vector<StateField> optimizer_fields() const override { return {}; }
  OptimizerControl& optimizer_control() override { fail(ExitCode::internal, "a noted stage has no optimizer"); }
  StageSeconds take_seconds() override { return {}; }
  CoherenceCount take_coherence() override { return {}; }
  StageExchangeCount exchange_count() const override { return {1, 2, 3, 4}; }
  double largest_score() const override { return 0; }
  LargestLoad largest_load() const override { return {}; }
  void look_for_nonfinite(bool) override {}
  std::optional<FirstBad> first_nonfinite() const override { return std::nullopt; }
  void spoil_next_forward() override {}
  std::vector<UpdateRecord> update_records() const override { return {}; }
  std::vector<RotationRecord> rotation_records() const override { return {}; }

  double evaluate() override {
    note("evaluate");
    return loss;
  }
  void token_losses(float*) override { note("token losses"); }
  void logits(int row, float*) override { note("logits {}", row); }
  std::unique_ptr<TokenDecoder> make_decoder(const DecoderOptions&) override { return nullptr; }
  void initialise(std::uint64_t) override { note("initialise"); }
  std::vector<StateField> model_fields() const override { return {}; }
  std::vector<std::string> formed_weights() const override { return {}; }
  void set_dense(const std::string&, const float*) override {}
  void weights_changed() override { note("weights changed"); }
  void copy_to_host(const StateField&, void*) const override {}
  void copy_from_host(const StateField&, const void*) const override {}
  void time_products(bool) override {}
  ProductCount take_products() override { return {}; }

 private:
  template <class... Values>
  void note(fmt::format_string<Values...> what, Values... values) {
    calls_.push_back(fmt::format("{}: {}", place_.number, fmt::format(what, std::forward<Values>(values)...)));
  }
  StagePlace place_;
  StagePlan plan_;
  StageDelay delay_;
  std::vector<double> squares_;
  Calls& calls_;
};

class NotedStages final : public StageMaker {
 public:
  std::string space() const override { return "none"; }
  MemorySpace memory() const override { return MemorySpace::host; }
  std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts& rank) const override {
    std::vector<std::unique_ptr<ForwardStage>> stages;
    for (std::unique_ptr<PipelineStage>& stage : make_training(rank)) stages.push_back(std::move(stage));
    return stages;
  }
  std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts& rank) const override {
    std::vector<std::unique_ptr<PipelineStage>> stages;
    for (const StageParts& parts : rank.stages) stages.push_back(std::make_unique<NotedStage>(parts, calls));
    return stages;
  }
  std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const override { return nullptr; }
  std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&, const Plan&) const override {
    return nullptr;
  }
  std::unique_ptr<BitAudit> make_audit(const PipelineStages&) const override { return nullptr; }
  Calls take() const { return std::exchange(calls, {}); }
  mutable Calls calls;
};

struct NoTokens final : Batches {
  BatchView next() override { return {}; }
};

// So many stages in one process, two micro-batches in an update.
Options options_of(int stages, ParallelOptions::Schedule schedule) {
  Options options = plan_options(small_model(), "muon", 1);
  options.train.micro_batch = options.train.global_batch / 2;
  options.train.clip_norm = 1;
  options.parallel.pp = stages;
  options.parallel.schedule = schedule;
  if (schedule == ParallelOptions::Schedule::async_1f1b)
    options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  return options;
}

struct NotedRun {
  explicit NotedRun(const Options& options) : executor(stages, make_plan({options, 1}), *alone) {}
  NotedStage& stage(std::size_t i) { return dynamic_cast<NotedStage&>(executor.run(i)); }
  std::unique_ptr<Communicator> alone = make_lone_communicator();
  NotedStages stages;
  Executor executor;
  NoTokens batches;
};

TEST(ExecutorStages, AnUpdateOfOneStageIsItsPassesSumsAndThenTheUpdate) {
  NotedRun run(options_of(1, ParallelOptions::Schedule::one_f_one_b));
  for (int t = 1; t <= 2; ++t) {
    const int micro = 2 * (t - 1);
    const Passes passes = run.executor.backward(t, 0.5, run.batches);
    ASSERT_TRUE(passes.sums);
    EXPECT_EQ(run.stages.take(),
              (Calls{fmt::format("0: expect {0} {0} {1}", micro, micro + 2), fmt::format("0: load {}", micro),
                     fmt::format("0: forward {}", micro), fmt::format("0: backward {}", micro),
                     fmt::format("0: load {}", micro + 1), fmt::format("0: forward {}", micro + 1),
                     fmt::format("0: backward {}", micro + 1), "0: finish gradients", "0: sum"}));
    run.executor.update();
    EXPECT_EQ(run.stages.take(), Calls{fmt::format("0: update {} at 0.5", t)});
    ASSERT_EQ(run.executor.exchange().size(), 1u);
  }
}

// Stage by stage up, and down again; the first stage of the rank brings in the tokens, and only the last one's losses
// count. The norm is over both, and so is the factor that clips.
TEST(ExecutorStages, TwoStagesOfOneRankRunOneForwardOneBackward) {
  NotedRun run(options_of(2, ParallelOptions::Schedule::one_f_one_b));
  run.stage(0).square = 9;
  run.stage(1).square = 16;
  run.stage(0).loss = 100;
  const Passes passes = run.executor.backward(1, 1, run.batches);
  const Calls calls = run.stages.take();
  ASSERT_TRUE(passes.sums);
  const Calls passes_of_both = {"0: load 0", "0: forward 0", "1: forward 0", "1: backward 0", "0: backward 0",
                                "0: load 1", "0: forward 1", "1: forward 1", "1: backward 1", "0: backward 1"};
  Calls wanted = {"0: expect 0 0 2", "1: expect 0 0 2"};
  wanted.insert(wanted.end(), passes_of_both.begin(), passes_of_both.end());
  wanted.insert(wanted.end(), {"0: finish gradients", "0: sum", "1: finish gradients", "1: sum"});
  EXPECT_EQ(calls, wanted);
  EXPECT_EQ(passes.sums->loss, 2 * 2);
  EXPECT_EQ(passes.sums->norm, 5);
  EXPECT_TRUE(passes.sums->weights_finite);
  run.executor.update();
  EXPECT_EQ(run.stages.take(), (Calls{"0: update 1 at 1", "1: update 1 at 1"}));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(run.stage(i).scales.all, 1.0 / 5, 1e-6);
}

// Matrices are updated once all ranks have been asked whether the step is dropped.
TEST(ExecutorStages, MatricesAreUpdatedBeforeTheSums) {
  Options options = options_of(1, ParallelOptions::Schedule::one_f_one_b);
  options.parallel.overlap_updates = true;
  options.parallel.clip_scope = ParallelOptions::ClipScope::matrix;
  NotedRun run(options);
  int asked = 0;
  bool drops = false;
  const auto interrupted = [&] { return ++asked, drops; };
  ASSERT_TRUE(run.executor.backward(1, 0.5, run.batches, interrupted).sums);
  EXPECT_EQ(asked, 1);
  Calls calls = run.stages.take();
  ASSERT_GE(calls.size(), 3u);
  EXPECT_EQ(Calls(calls.end() - 3, calls.end()),
            (Calls{"0: matrices 1 at 0.5 within 1", "0: finish gradients", "0: sum"}));
  run.executor.update();
  run.stages.take();
  drops = true;
  EXPECT_TRUE(run.executor.backward(2, 0.5, run.batches, interrupted).dropped);
  for (const std::string& call : run.stages.take()) EXPECT_EQ(call.find("matrices"), std::string::npos) << call;
}

// In an asynchronous pipeline a stage updates in the passes, by itself; one whose gradient is not finite keeps its
// weights, and the other one goes on.
TEST(ExecutorStages, AnAsynchronousStageUpdatesInThePassesOrWithholds) {
  NotedRun run(options_of(2, ParallelOptions::Schedule::async_1f1b));
  run.executor.start_at(0);
  run.stages.take();
  run.stage(0).square = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(run.executor.backward(1, 1, run.batches).sums);
  const Calls calls = run.stages.take();
  const auto place = [&](const char* call) { return std::find(calls.begin(), calls.end(), call) - calls.begin(); };
  const auto end = static_cast<std::ptrdiff_t>(calls.size());
  EXPECT_LT(place("0: forward 1"), place("0: backward 0"));  // one forward pass ahead
  EXPECT_LT(place("1: backward 1"), place("1: update 1 at 1"));
  EXPECT_LT(place("0: backward 1"), place("0: withhold"));
  EXPECT_LT(place("1: update 1 at 1"), end);
  EXPECT_LT(place("0: withhold"), end);
  EXPECT_EQ(place("0: update 1 at 1"), end);
  EXPECT_EQ(place("1: withhold"), end);
}

TEST(ExecutorStages, AnEvaluationPassesThroughAllStages) {
  NotedRun run(options_of(2, ParallelOptions::Schedule::one_f_one_b));
  Evaluator evaluator(run.stages, run.executor.plan().input, PassOptions{1, 8}, *run.alone);
  EXPECT_EQ(evaluator.loss({}), 4);
  EXPECT_EQ(run.stages.take(), (Calls{"0: load -1", "0: evaluate", "1: evaluate"}));
}

}  // namespace
}  // namespace sestina

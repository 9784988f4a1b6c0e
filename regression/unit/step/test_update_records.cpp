// Measured updates in a whole run: their lines, the bits of the run, and a stage that leaves a tensor out.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "regression/unit/step/optimizer_run.hpp"

namespace sestina {
namespace {

using Json = nlohmann::json;

std::vector<Json> update_lines(const std::string& run_dir) {
  std::vector<Json> lines;
  std::ifstream file(run_dir + "/metrics.jsonl");
  for (std::string text; std::getline(file, text);)
    if (Json line = Json::parse(text); line.at("kind") == "updates") lines.push_back(std::move(line));
  return lines;
}

class UpdateRecords : public OptimizerRun {
 protected:
  TrainSetup measured(const TrainSetup& setup, const char* name, int every) const {
    TrainSetup run = setup;
    run.run_dir = (folder_ / name).string();
    fs::create_directories(run.run_dir);
    run.options.metrics.updates_every = every;
    run.planned = plan_that_fits(run.options);
    return run;
  }
};

TEST_P(UpdateRecords, AreWrittenAndChangeNoBit) {
  const TrainSetup plain = setup(4, "plain", "fp32"), run = measured(plain, "measured", 2);
  EXPECT_EQ(train(run, Host()), train(plain, Host()));
  EXPECT_TRUE(update_lines(plain.run_dir).empty());
  const std::vector<Json> lines = update_lines(run.run_dir);
  ASSERT_EQ(lines.size(), 2u);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("step"), 2 * (i + 1));
    bool matrices = false;
    for (const Json& tensor : lines[i].at("tensors")) {
      const bool by_kind = tensor.at("rule") == GetParam();
      matrices = matrices || by_kind;
      EXPECT_TRUE(by_kind || tensor.at("rule") == "adamw") << tensor;
      EXPECT_EQ(tensor.at("split"), by_kind ? "whole" : "elements");
      EXPECT_EQ(tensor.at("owner"), "0");
      EXPECT_EQ(tensor.at("calls"), 2);
      EXPECT_EQ(tensor.at("orthogonality_defect").is_number(), by_kind) << tensor;
      EXPECT_GT(tensor.at("update_rms"), 0) << tensor;
      EXPECT_GT(tensor.at("update_ratio"), 0) << tensor;
      EXPECT_TRUE(tensor.at("decay").is_number());
      const bool in_layers = tensor.at("pattern").get<std::string>().find(".*.") != std::string::npos;
      EXPECT_EQ(tensor.at("layers").size(), in_layers ? 2u : 0u);
    }
    EXPECT_TRUE(matrices);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, UpdateRecords, testing::ValuesIn(kind_names()), kind_test_name);

class ProvedRun : public UpdateRecords {};

// Five steps of Newton-Schulz bring singular values near to one another, but for those that are too small: in the first
// updates some gradients have few directions.
TEST_P(ProvedRun, DirectionsOfMuonAreNearlyOrthogonal) {
  const TrainSetup run = measured(setup(4, "plain", "fp32"), "measured", 4);
  train(run, Host());
  const std::vector<Json> lines = update_lines(run.run_dir);
  int found = 0;
  double least = 1;
  for (const Json& tensor : lines.at(0).at("tensors")) {
    if (tensor.at("rule") != "muon") continue;
    ++found;
    EXPECT_LT(tensor.at("orthogonality_defect"), 1) << tensor;
    least = std::min(least, tensor.at("orthogonality_defect").get<double>());
    EXPECT_EQ(tensor.at("calls"), 4);
  }
  EXPECT_EQ(found, 7);
  EXPECT_LT(least, 0.5);
}

// An asynchronous pipeline measures the update of each stage in its passes.
TEST_P(ProvedRun, AsynchronousStagesAreMeasured) {
  const TrainSetup run =
      measured(setup(4, "plain", "fp32", "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n"), "measured", 2);
  train(run, Host());
  const std::vector<Json> lines = update_lines(run.run_dir);
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& tensor : lines[1].at("tensors")) {
    EXPECT_EQ(tensor.at("calls"), 2) << tensor;
    EXPECT_GT(tensor.at("update_rms"), 0) << tensor;
  }
}

// A stage that forgets one of its tensors: all else is that of the stage that it holds.
class ForgetfulStage final : public PipelineStage {
 public:
  explicit ForgetfulStage(std::unique_ptr<PipelineStage> stage) : stage_(std::move(stage)) {}
  std::vector<UpdateRecord> update_records() const override {
    std::vector<UpdateRecord> records = stage_->update_records();
    std::erase_if(records, [](const UpdateRecord& r) { return r.tensor == "model.layers.1.mlp.down_proj.weight"; });
    return records;
  }
  std::vector<RotationRecord> rotation_records() const override { return stage_->rotation_records(); }

  void start_averages() override { stage_->start_averages(); }
  void swap_average() override { stage_->swap_average(); }
  const StagePlace& place() const override { return stage_->place(); }
  const StagePlan& plan() const override { return stage_->plan(); }
  void load(std::int64_t micro, const BatchView& batch) override { stage_->load(micro, batch); }
  double evaluate() override { return stage_->evaluate(); }
  void token_losses(float* host) override { stage_->token_losses(host); }
  void logits(int row, float* host) override { stage_->logits(row, host); }
  std::unique_ptr<TokenDecoder> make_decoder(const DecoderOptions& o) override { return stage_->make_decoder(o); }
  void initialise(std::uint64_t seed) override { stage_->initialise(seed); }
  std::vector<StateField> model_fields() const override { return stage_->model_fields(); }
  std::vector<std::string> formed_weights() const override { return stage_->formed_weights(); }
  void set_dense(const std::string& name, const float* host) override { stage_->set_dense(name, host); }
  void weights_changed() override { stage_->weights_changed(); }
  void copy_to_host(const StateField& field, void* host) const override { stage_->copy_to_host(field, host); }
  void copy_from_host(const StateField& field, const void* host) const override { stage_->copy_from_host(field, host); }
  void time_products(bool on) override { stage_->time_products(on); }
  ProductCount take_products() override { return stage_->take_products(); }
  void look_ahead(std::int64_t t, double factor) override { stage_->look_ahead(t, factor); }
  void look_back() override { stage_->look_back(); }
  void expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) override {
    stage_->expect_messages(first, begin, end);
  }
  void start_receive(PipelineReceive::What what, std::int64_t micro) override { stage_->start_receive(what, micro); }
  void forward(std::int64_t micro) override { stage_->forward(micro); }
  void backward(std::int64_t micro, double scale) override { stage_->backward(micro, scale); }
  void backward_weight(std::int64_t micro) override { stage_->backward_weight(micro); }
  double update_matrices(std::int64_t t, double factor, double clip) override {
    return stage_->update_matrices(t, factor, clip);
  }
  void finish_gradients() override { stage_->finish_gradients(); }
  std::span<const double> sum(std::span<double> losses) override { return stage_->sum(losses); }
  void update(std::int64_t t, double factor, const ClipScales& scales) override { stage_->update(t, factor, scales); }
  void withhold() override { stage_->withhold(); }
  const StageDelay& delay() const override { return stage_->delay(); }
  void complete() override { stage_->complete(); }
  void finish_gather() override { stage_->finish_gather(); }
  void synchronise() override { stage_->synchronise(); }
  void start_at(std::int64_t updates, std::int64_t origin) override { stage_->start_at(updates, origin); }
  void start_corrections(bool read) override { stage_->start_corrections(read); }
  std::vector<StateField> in_flight_fields(bool in_flight, bool reading) const override {
    return stage_->in_flight_fields(in_flight, reading);
  }
  void restored() override { stage_->restored(); }
  void drop_in_flight() override { stage_->drop_in_flight(); }
  std::vector<StateField> optimizer_fields() const override { return stage_->optimizer_fields(); }
  OptimizerControl& optimizer_control() override { return stage_->optimizer_control(); }
  StageSeconds take_seconds() override { return stage_->take_seconds(); }
  CoherenceCount take_coherence() override { return stage_->take_coherence(); }
  StageExchangeCount exchange_count() const override { return stage_->exchange_count(); }
  double largest_score() const override { return stage_->largest_score(); }
  LargestLoad largest_load() const override { return stage_->largest_load(); }
  void look_for_nonfinite(bool on) override { stage_->look_for_nonfinite(on); }
  std::optional<FirstBad> first_nonfinite() const override { return stage_->first_nonfinite(); }
  void spoil_next_forward() override { stage_->spoil_next_forward(); }

 private:
  std::unique_ptr<PipelineStage> stage_;
};

class ForgetfulStages final : public StageMaker {
 public:
  std::string space() const override { return stages_.space(); }
  MemorySpace memory() const override { return stages_.memory(); }
  std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts& rank) const override {
    return stages_.make_forward(rank);
  }
  std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts& rank) const override {
    std::vector<std::unique_ptr<PipelineStage>> stages;
    for (auto& stage : stages_.make_training(rank))
      stages.push_back(std::make_unique<ForgetfulStage>(std::move(stage)));
    return stages;
  }
  std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const override { return nullptr; }
  std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&, const Plan&) const override {
    return nullptr;
  }
  std::unique_ptr<BitAudit> make_audit(const PipelineStages&) const override { return nullptr; }

 private:
  StagesOf<Host, float> stages_;
};

// No key asks for the comparison: it ends the run after its first update.
TEST_P(ProvedRun, ATensorThatIsLeftOutEndsTheRun) {
  const TrainSetup run = setup(3, "forgetful", "fp32");
  Stop stop(run.options.run, run.run_dir);
  Metrics metrics(run.run_dir, false);
  const SampleSet samples(run.options.data, Split::train, 256, 1, nullptr);
  Runtime runtime(all_ranks(), 60);
  Trainer trainer(ForgetfulStages(), run, runtime, samples, nullptr, stop, metrics);
  try {
    trainer.run();
    FAIL() << "the run went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::internal);
    EXPECT_STREQ(error.what(),
                 "model.layers.1.mlp.down_proj.weight is updated by no optimizer; the deck asks for muon");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ProvedRun, testing::Values("muon"), kind_test_name);

}  // namespace
}  // namespace sestina

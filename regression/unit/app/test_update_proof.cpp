// What ranks tell of their updates, against what the deck asks for, and as lines of the metrics.
#include "app/train/update_proof.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/optimizer/base/routing.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

const std::string up_0 = "model.layers.0.mlp.up_proj.weight", norm_1 = "model.layers.1.input_layernorm.weight";

class UpdateProofOf : public testing::Test {
 protected:
  // Two ranks that halve all tensors, after `calls` updates. Every tensor moves by 3 e-4 times its layer + 1, and every
  // weight is 0.1.
  RankRecords records(std::int64_t calls) const {
    RankRecords all(2);
    for (const TensorSpec& spec : plan.stages[0].specs)
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        UpdateRecord record{spec.name, rule_of(spec, options.optimizer), spec.elements() / 2, calls, true, calls};
        const auto n = static_cast<double>(record.elements);
        record.measure = {std::pow(3e-4 * (spec.layer + 1), 2) * n, 0.01 * n, 0, 0, 0.5};
        if (record.rule == "muon") record.measure.defect = 4, record.measure.sides = 100;
        all[rank].push_back(record);
      }
    return all;
  }
  UpdateRecord& record_of(RankRecords& all, const std::string& tensor, std::size_t rank) const {
    for (UpdateRecord& record : all[rank])
      if (record.tensor == tensor) return record;
    fail(ExitCode::internal, "{}", tensor);
  }
  void expect_refused(const RankRecords& all, const std::string& message) const {
    try {
      UpdateProof(plan).require_asked(all);
      FAIL() << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::internal);
      EXPECT_EQ(std::string(error.what()), message);
    }
  }

  Options options = plan_options(small_model(), "muon", 1);
  Plan plan = make_plan(options);
};

TEST_F(UpdateProofOf, EveryTensorGetsTheUpdateThatIsAskedFor) {
  EXPECT_TRUE(UpdateProof(plan).require_asked(records(1)));
  EXPECT_FALSE(UpdateProof(plan).require_asked(records(0)));  // withheld: nothing is proved yet
}

TEST_F(UpdateProofOf, ATensorThatIsLeftOutEndsTheRun) {
  RankRecords all = records(1);
  for (auto& rank : all) std::erase_if(rank, [](const UpdateRecord& record) { return record.tensor == up_0; });
  expect_refused(all, up_0 + " is updated by no optimizer; the deck asks for muon");
}

TEST_F(UpdateProofOf, AnotherRuleEndsTheRun) {
  RankRecords all = records(1);
  record_of(all, up_0, 1).rule = "adamw";
  expect_refused(all, up_0 + " is updated by adamw on rank 1; the deck asks for muon");
  all = records(1);
  all[0].push_back(record_of(all, norm_1, 0));  // a second rule in addition to the one that is asked for
  all[0].back().rule = "muon";
  expect_refused(all, norm_1 + " is updated by muon on rank 0; the deck asks for adamw");
}

TEST_F(UpdateProofOf, AnUpdateThatIsMissingOrMadeTwiceEndsTheRun) {
  for (const std::int64_t calls : {0, 2}) {
    RankRecords all = records(1);
    record_of(all, up_0, 0).calls = calls;
    expect_refused(all, fmt::format("{}: calls of muon on rank 0: {}; updates of its stage: 1", up_0, calls));
  }
}

TEST_F(UpdateProofOf, ElementsThatNobodyUpdatesEndTheRun) {
  RankRecords all = records(1);
  const std::int64_t elements = 2 * record_of(all, up_0, 1).elements;
  record_of(all, up_0, 1).saved = false;
  expect_refused(all, fmt::format("{}: muon updates {} of {} elements; the deck asks for all of them", up_0,
                                  elements / 2, elements));
}

const Metrics::UpdateLine& line_of(const std::vector<Metrics::UpdateLine>& lines, const std::string& pattern) {
  for (const Metrics::UpdateLine& line : lines)
    if (line.pattern == pattern) return line;
  fail(ExitCode::internal, "{}", pattern);
}

TEST_F(UpdateProofOf, LinesFoldLayersAndRanks) {
  UpdateProof proof(plan);
  proof.lines(records(5));
  const std::vector<Metrics::UpdateLine> lines = proof.lines(records(8));
  const Metrics::UpdateLine& up = line_of(lines, "model.layers.*.mlp.up_proj.weight");
  EXPECT_EQ(up.rule + " " + up.split + " " + up.owner, "muon whole 0-1");
  EXPECT_EQ(up.calls, 3);
  EXPECT_DOUBLE_EQ(up.orthogonality_defect.value(), 0.2);
  const double rms = 3e-4 * std::sqrt((1 + 4 + 9) / 3.0);
  EXPECT_NEAR(up.update_rms, rms, 1e-12 * rms);
  EXPECT_NEAR(up.update_ratio, rms / 0.1, 1e-12);
  EXPECT_EQ(up.decay, 0.5);
  ASSERT_EQ(up.layers.size(), 3u);
  for (std::size_t layer = 0; layer < 3; ++layer)
    EXPECT_NEAR(up.layers[layer], 3e-3 * static_cast<double>(layer + 1), 1e-12);
  const Metrics::UpdateLine& embedding = line_of(lines, "model.embed_tokens.weight");
  EXPECT_FALSE(embedding.orthogonality_defect.has_value());
  EXPECT_TRUE(embedding.layers.empty());
}

// A layer that a group gives to another rule has a line by itself.
TEST_F(UpdateProofOf, LinesAreByRule) {
  options.optimizer.group.push_back({.match = up_0, .kind = "adamw"});
  plan = make_plan(options);
  int found = 0;
  for (const Metrics::UpdateLine& line : UpdateProof(plan).lines(records(1))) {
    if (line.pattern != "model.layers.*.mlp.up_proj.weight") continue;
    ++found;
    for (std::size_t layer = 0; layer < 3; ++layer)
      EXPECT_EQ(std::isnan(line.layers.at(layer)), (layer == 0) == (line.rule == "muon")) << line.rule;
  }
  EXPECT_EQ(found, 2);
}

}  // namespace
}  // namespace sestina

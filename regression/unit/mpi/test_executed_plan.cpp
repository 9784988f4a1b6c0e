// The executor does what the plan says that it was handed, and plans nothing by itself.
#include <algorithm>

#include "training_rig.hpp"

namespace sestina {
namespace {

// A legal plan that make_plan would never give: every matrix belongs to the next data-parallel rank.
Plan with_next_owners(Plan plan) {
  for (StagePlan& stage : plan.stages) {
    for (int& owner : stage.owner)
      if (owner >= 0) owner = (owner + 1) % plan.dp;
    lay_out_buckets(stage, plan.input, 0);
  }
  return plan;
}

// Matrices whose optimizer state this rank keeps, by name.
std::vector<std::string> kept_matrices(const TypedExecutor<Host, float>& run) {
  std::vector<std::string> names;
  for (const StagePlan& stage : run.plan().stages)
    for (std::size_t i = 0; i < stage.specs.size(); ++i) {
      const std::string path = "/optimizer/" + stage.specs[i].name + "/";
      const auto fields = run.optimizer_fields();
      const bool kept = std::any_of(fields.begin(), fields.end(), [&](const StateField& field) {
        return field.path.compare(0, path.size(), path) == 0;
      });
      if (kept && stage.is_matrix(static_cast<int>(i))) names.push_back(stage.specs[i].name);
    }
  return names;
}

std::vector<std::string> owned_matrices(const Plan& plan, int dp_rank) {
  std::vector<std::string> names;
  for (const StagePlan& stage : plan.stages)
    for (std::size_t i = 0; i < stage.specs.size(); ++i)
      if (stage.owner[i] == dp_rank) names.push_back(stage.specs[i].name);
  return names;
}

// Ranks: ExecutedPlan 2
TEST(ExecutedPlan, OwnersAreThoseOfThePlanThatWasHandedOver) {
  const TrainingCase run = grid_case("soap", 1);
  const Plan usual = make_plan({run.options, world().size()}), other = with_next_owners(usual);
  const int rank = world().rank();
  ASSERT_NE(owned_matrices(usual, rank), owned_matrices(other, rank));
  Trained result;
  TypedExecutor<Host, float> executor(Host(), other, world());
  executor.initialise(5);
  train_steps(executor, run.options, 0, 3, result);
  EXPECT_EQ(kept_matrices(executor), owned_matrices(other, rank));
  const Trained expected = train_together<float>(run, 3);
  EXPECT_EQ(result.loss, expected.loss);
  EXPECT_EQ(whole_weights(executor), expected.weights);
}

}  // namespace
}  // namespace sestina

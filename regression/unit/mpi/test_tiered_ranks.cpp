// Moments that lie in a store between their uses on several ranks: each has those of what it owns there, as many bytes
// as the plan says, and all weights have the bits of a run in memory.
#include <gtest/gtest.h>

#include "parallel/plan/plan_memory.hpp"
#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

template <class T>
void expect_same_weights(TrainingCase run, const std::string& what) {
  constexpr int updates = 3;
  const Trained plain = train_together<T>(run, updates);
  run.options.optimizer.state_tier = Tier::nvme;
  if (run.options.optimizer.matrix) run.options.optimizer.matrix->state_tier = Tier::nvme;
  const auto store = std::make_shared<reference::MemoryStore>();
  const auto pager = std::make_shared<Pager>(store, Pager::Options{});
  TypedExecutor<Host, T> session(Host(), make_plan({run.options, world().size()}), world());
  for (PipelineStage* stage : session.runs()) stage->optimizer_control().page_to(pager);
  pager->open();
  session.initialise(5);
  Trained paged;
  train_steps(session, run.options, 0, updates, paged);
  EXPECT_TRUE(whole_weights(session) == plain.weights) << what;
  EXPECT_TRUE(paged.loss == plain.loss) << what;
  pager->wait_idle();
  EXPECT_LE(pager->counts().largest, pager->limit()) << what;
  EXPECT_EQ(store->lost, 0) << what;
  const auto rank = static_cast<std::size_t>(world().rank());
  EXPECT_EQ(rank_memory(session.plan(), threads_of(Host()))[rank].nvme, pager->bytes()) << what << ", rank " << rank;
}

// Ranks: TieredRanks 1 2 4

TEST(TieredRanks, EveryLayoutHasTheSameBits) {
  for (const std::string kind : {"adamw", adamw_8bit, "muon", "soap"})
    for (const int tp : {1, 2}) {
      if (world().size() % tp != 0) continue;
      expect_same_weights<bf16>(grid_case(kind, tp), fmt::format("{}, tp {}", kind, tp));
    }
}

TEST(TieredRanks, StagesOfAPipelineShareAStore) {
  for (const auto schedule : {ParallelOptions::Schedule::one_f_one_b, ParallelOptions::Schedule::async_1f1b}) {
    TrainingCase run = grid_case("muon", 1);
    run.options.model.num_hidden_layers = 4;
    run.options.parallel.pp = 4;
    run.options.parallel.dp = 1;
    run.options.parallel.schedule = schedule;
    expect_same_weights<float>(run, fmt::format("schedule {}", static_cast<int>(schedule)));
  }
}

}  // namespace
}  // namespace sestina

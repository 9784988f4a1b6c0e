// Moments that lie in a store between their uses on several ranks: each has those of what it owns there, as many bytes
// as the plan says, and all weights have the bits of a run in memory.
#include <gtest/gtest.h>

#include "parallel/exchange/rank_memory.hpp"
#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// A run whose moments lie in a store between their uses.
TrainingCase in_store(TrainingCase run) {
  run.options.optimizer.state_tier = Tier::nvme;
  if (run.options.optimizer.matrix) run.options.optimizer.matrix->state_tier = Tier::nvme;
  return run;
}

template <class T>
struct PagedSession {
  explicit PagedSession(const TrainingCase& run) : session(Host(), make_plan({run.options, world().size()}), world()) {
    session.page_to(pager);
    pager->open();
    session.initialise(5);
  }
  std::shared_ptr<reference::MemoryStore> store = std::make_shared<reference::MemoryStore>();
  std::shared_ptr<Pager> pager = std::make_shared<Pager>(store, Pager::Options{});
  TypedExecutor<Host, T> session;
};

template <class T>
void expect_same_weights(const TrainingCase& in_memory, const std::string& what) {
  constexpr int updates = 3;
  const Trained plain = train_together<T>(in_memory, updates);
  const TrainingCase run = in_store(in_memory);
  PagedSession<T> stored(run);
  auto& [store, pager, session] = stored;
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

// What the update uses first is read while the backward pass runs, also where a save has read all state since the last
// update, or where there was none.
TEST(TieredRanks, BackwardPassesBringWhatTheUpdateUsesFirst) {
  for (const std::string kind : {"adamw", "muon"}) {
    const TrainingCase run = in_store(grid_case(kind, 1));
    PagedSession<float> stored(run);
    auto& [store, pager, session] = stored;
    SampleBatches batches(run.options, session.share(), 0);
    std::size_t after_save = 0;
    for (int t = 1; t <= 3; ++t) {
      if (t < 3)
        for (const StateField& field : session.optimizer_fields())
          for_each_block(field, [](const StateField& part, std::size_t) {
            const auto whole = write_to(part);  // as a load, or a save
          });
      pager->wait_idle();
      const Pager::Counts before = pager->counts();
      session.backward(t, 1, batches);
      pager->wait_idle();
      const Pager::Counts after = pager->counts();
      const std::string what = fmt::format("{}, update {}", kind, t);
      if (t == 1) EXPECT_EQ(before.in_memory, 0u) << what;
      if (t == 1) EXPECT_GT(after.bytes_read, before.bytes_read) << what;
      if (t == 2) after_save = after.in_memory;
      if (t == 3) EXPECT_EQ(after.in_memory, after_save) << what;
      EXPECT_GT(after.in_memory, 0u) << what;
      session.update();
      session.exchange();
    }
    session.finish_steps();
    session.finish_gather();
    EXPECT_LE(pager->counts().largest, pager->limit());
  }
}

}  // namespace
}  // namespace sestina

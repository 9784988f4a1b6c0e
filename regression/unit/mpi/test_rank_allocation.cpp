// After its first steps no rank allocates anything in a step, whatever the grid and the optimizer.
#include <gtest/gtest.h>

#include "regression/unit/allocation_counter.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// The same window again and again: reading it allocates nothing.
struct OneWindow final : Batches {
  explicit OneWindow(const Options& options) : tokens(sample_tokens(options, 3)) {}
  BatchView next() override { return {tokens.data(), nullptr}; }
  std::vector<std::int32_t> tokens;
};

// Ranks: RankAllocation 4

TEST(RankAllocation, AStepAllocatesNothing) {
  for (const char* kind : {"muon", "soap", "adamw"})
    for (const int tp : {1, 2}) {
      TrainingCase run = training_case(kind);
      run.options.train.global_batch = 8;
      run.options.parallel.tp = tp;
      run.options.parallel.dp = world().size() / tp;
      TypedExecutor<Host, bf16> session(Host(), make_plan({run.options, world().size()}), world());
      session.initialise(5);
      OneWindow window(run.options);
      int t = 0;
      while (t < 8) take_step(session, ++t, window);  // two refreshes are in it
      AllocationCounter counter;
      while (t < 13) take_step(session, ++t, window);
      EXPECT_EQ(counter.heap(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      EXPECT_EQ(counter.kokkos(), 0) << kind << ", tp " << tp << "\n" << counter.places();
      session.finish_gather();
    }
}

// Weights that stay choose the same experts: no shape of a product is new.
TEST(RankAllocation, AStepWithExpertsOnSeveralRanksAllocatesNothing) {
  using Shard = ParallelOptions::Shard;
  for (const auto& [tp, ep, shard] : {std::tuple(1, 2, Shard::state), std::tuple(1, 4, Shard::state),
                                      std::tuple(2, 2, Shard::state), std::tuple(1, 4, Shard::weights)}) {
    TrainingCase run = training_case("muon", Family::qwen3_moe);
    run.options.model.num_experts = 8;
    run.options.model.shared_expert_intermediate_size = 16;
    run.options.model.router_bias_rate = 1e-12;  // too little for another choice
    run.options.train.global_batch = 8;
    run.options.parallel.tp = tp;
    run.options.parallel.dp = world().size() / tp;
    run.options.parallel.ep = ep;
    run.options.parallel.shard = shard;
    run.options.optimizer.lr = run.options.optimizer.adamw.lr = 0;
    TypedExecutor<Host, float> session(Host(), make_plan({run.options, world().size()}), world());
    session.initialise(5);
    OneWindow window(run.options);
    int t = 0;
    while (t < 8) take_step(session, ++t, window);
    AllocationCounter counter;
    while (t < 13) take_step(session, ++t, window);
    EXPECT_EQ(counter.heap(), 0) << "tp " << tp << ", ep " << ep << "\n" << counter.places();
    EXPECT_EQ(counter.kokkos(), 0) << "tp " << tp << ", ep " << ep << "\n" << counter.places();
    session.finish_gather();
  }
}

TEST(RankAllocation, AStepOfAnAsynchronousPipelineAllocatesNothing) {
  using Kind = ParallelOptions::DelayCorrection;
  for (const Kind kind : {Kind::none, Kind::nesterov, Kind::pipemare, Kind::prediction, Kind::dc_asgd}) {
    TrainingCase run = training_case("adamw");
    Options& o = run.options;
    o.model.num_hidden_layers = 4;
    o.train.global_batch = 2;
    o.parallel.pp = 4;
    o.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
    o.metrics.every = 2;  // drift of weights
    o.parallel.clip_scope =
        kind == Kind::none ? ParallelOptions::ClipScope::global_lagged : ParallelOptions::ClipScope::group;
    if (kind == Kind::pipemare) o.parallel.stash = ParallelOptions::Stash::saved;
    o.model.tie_word_embeddings = kind != Kind::pipemare;
    o.parallel.correction = {.kind = kind, .lambda = 1};
    if (kind == Kind::nesterov) o.optimizer.adamw.momentum_decay = 1.0;
    TypedExecutor<Host, bf16> session(Host(), make_plan({o, world().size()}), world());
    session.initialise(5);
    session.weights_changed();
    session.start_at(0);
    OneWindow window(o);
    int t = 0;
    while (t < 12) take_step(session, ++t, window);
    AllocationCounter counter;
    while (t < 18) take_step(session, ++t, window);
    EXPECT_EQ(counter.heap(), 0) << name(kind) << "\n" << counter.places();
    EXPECT_EQ(counter.kokkos(), 0) << name(kind) << "\n" << counter.places();
    session.finish_steps();
    session.finish_gather();
  }
}

}  // namespace
}  // namespace sestina

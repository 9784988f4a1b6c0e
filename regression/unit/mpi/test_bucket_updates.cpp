// Updates of matrices before all gradients are there: the bits of an update that begins when all are, on every layout
// that may have it; and what happens where gradients are not finite.
#include <gtest/gtest.h>

#include <limits>

#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

using Partition = ParallelOptions::Partition;

// Some matrices are clipped.
TrainingCase clipped_case(const std::string& kind, Family family = Family::llama) {
  TrainingCase run = pipeline_case(kind, family);
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::matrix;
  run.options.train.clip_norm = 0.05;
  return run;
}

TrainingCase overlapped(TrainingCase run) {
  run.options.parallel.overlap_updates = true;
  return run;
}

// Ranks: BucketUpdates 2 4

TEST(BucketUpdates, HaveTheBitsOfOneRankThatUpdatesAtTheEnd) {
  for (const char* kind : {"muon", "soap", "shampoo", "normuon"}) {
    TrainingCase run = clipped_case(kind);
    const Trained one = train_alone<float>(run, 5);
    expect_same(one, train_alone<float>(overlapped(run), 5), kind);
    run.options.parallel.dp = world().size();
    expect_same(one, train_together<float>(run, 5), kind);
    run.options.parallel.bucket_elements = 30000;  // layers share buckets
    for (const Partition partition : {Partition::optimal, Partition::layerwise, Partition::start_index}) {
      run.options.parallel.partition = partition;
      expect_same(one, train_together<float>(overlapped(run), 5), kind);
    }
  }
}

TEST(BucketUpdates, ClipEachMatrixByItself) {
  TrainingCase run = clipped_case("muon");
  const Trained by_matrix = train_alone<float>(run, 2);
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::global;
  EXPECT_FALSE(by_matrix.weights == train_alone<float>(run, 2).weights);
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::matrix;
  run.options.train.clip_norm = 0;
  run.options.parallel.dp = world().size();
  const Trained free = train_together<float>(run, 3);
  expect_same(free, train_together<float>(overlapped(run), 3), "not clipped");
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::global;
  expect_same(free, train_together<float>(overlapped(run), 3), "without a scope");
}

TEST(BucketUpdates, OfPipelinesHaveTheBitsOfOneStage) {
  TrainingCase run = clipped_case("muon");
  const Trained one = train_alone<float>(run, 4);
  for (const Kind schedule : {Kind::one_f_one_b, Kind::gpipe, Kind::zb_h1, Kind::interleaved}) {
    TrainingCase staged = in_stages(overlapped(run), schedule);
    expect_same(one, train_together<float>(staged, 4), "pipeline");
  }
  if (world().size() < 4) return;
  run.options.parallel.dp = run.options.parallel.pp = 2;
  expect_same(one, train_together<float>(overlapped(run), 4), "2 x 2");
}

TEST(BucketUpdates, InBf16AndOfExpertsHaveTheBitsOfUpdatesAtTheEnd) {
  TrainingCase run = clipped_case("muon");
  run.options.parallel.dp = world().size();
  expect_same(train_together<bf16>(run, 4), train_together<bf16>(overlapped(run), 4), "bf16");
  run = clipped_case("soap", Family::qwen3_moe);
  run.options.model.num_experts = 8;
  run.options.parallel.dp = run.options.parallel.ep = world().size();
  expect_same(train_together<float>(run, 4), train_together<float>(overlapped(run), 4), "experts");
}

// The baseline that waits for all gradients on all ranks, and for all weights.
TEST(BucketUpdates, OfABaselineWithAnAllReduceAreTheSame) {
  for (const char* kind : {"muon", "soap"}) {
    TrainingCase run = clipped_case(kind);
    const Trained one = train_alone<float>(run, 4);
    run.options.parallel.dp = world().size();
    run.options.parallel.partition = Partition::layerwise;
    run.options.parallel.reduce = ParallelOptions::Reduce::all;
    expect_same(one, train_together<float>(run, 4), kind);
  }
}

// Refreshes by workers and inside updates fall due as they do at the end.
TEST(BucketUpdates, RefreshAsUpdatesAtTheEndDo) {
  for (const int staleness : {0, 2}) {
    TrainingCase run = clipped_case("soap");
    run.options.optimizer.matrix->refresh_every = 3;
    run.options.optimizer.matrix->refresh_staleness = staleness;
    run.options.optimizer.refresh.workers = 1;
    run.options.parallel.dp = world().size();
    expect_same(train_together<float>(run, 8), train_together<float>(overlapped(run), 8), "refreshes");
  }
}

// A matrix has no finite gradient: its weights, and all that elementwise rules update, stay; other matrices move.
TEST(BucketUpdates, WithholdAMatrixWhoseGradientIsNotFinite) {
  TrainingCase run = overlapped(clipped_case("muon"));
  run.options.parallel.dp = world().size();
  TypedExecutor<Host, float> session(Host(), make_plan({run.options, world().size()}), world());
  session.initialise(5);
  session.weights_changed();
  const std::vector<float> before = whole_weights(session);
  const Arena<Host, float>& arena = session.stage(0).arena();
  SampleBatches batches(run.options, session.share(), 0);
  const auto spoil = [&] {  // called once the passes are over: what this rank owns of the matrix
    for (std::size_t i = 0; i < arena.size(); ++i)
      if (arena.specs()[i].name.find(".1.mlp.down_proj") != std::string::npos && arena.owned_gradient(i).size() > 0)
        const_cast<float*>(arena.owned_gradient(i).data())[0] = std::numeric_limits<float>::infinity();
    return false;
  };
  const Passes passes = session.backward(1, 1, batches, spoil);
  ASSERT_TRUE(passes.sums);
  EXPECT_FALSE(std::isfinite(passes.sums->norm));
  EXPECT_NE(session.nonfinite_gradient().find(".1.mlp.down_proj"), std::string::npos) << session.nonfinite_gradient();
  session.withdraw();
  session.finish_gather();
  for (const UpdateRecord& record : session.run().update_records())
    EXPECT_EQ(record.calls, record.due) << record.tensor;
  const std::vector<float> after = whole_weights(session);
  std::size_t begin = 0;
  for (const TensorSpec& spec : session.plan().stages[0].specs) {
    const auto n = static_cast<std::ptrdiff_t>(spec.elements());
    const auto first = static_cast<std::ptrdiff_t>(begin);
    const bool same = std::equal(before.begin() + first, before.begin() + first + n, after.begin() + first);
    const bool spoilt = spec.name.find(".1.mlp.down_proj") != std::string::npos;
    EXPECT_EQ(same, spoilt || spec.layer < 0 || spec.is_vector()) << spec.name;
    begin += static_cast<std::size_t>(n);
  }
  ASSERT_TRUE(session.backward(1, 1, batches).sums);
  session.update();
  session.finish_gather();
  bool more = false;  // of matrices that the refused step has updated
  for (const UpdateRecord& record : session.run().update_records()) {
    EXPECT_EQ(record.calls, record.due) << record.tensor;
    more = more || record.calls == 2;
  }
  double any = more ? 1 : 0;
  world().all_reduce(&any, 1, Reduction::max);
  EXPECT_EQ(any, 1);
}

}  // namespace
}  // namespace sestina

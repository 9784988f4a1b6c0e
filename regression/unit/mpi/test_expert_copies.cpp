// Experts that lie on some ranks, where others keep copies of the rest: updated by every rank that holds them
// (parallel.partition = "replicated"), and in asynchronous pipelines with older weights of each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <tuple>

#include "app/train/restore.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "regression/unit/mpi/pipeline_rig.hpp"

namespace sestina {
namespace {

// Eight experts, of which a token passes three, on ep of the data-parallel ranks of each stage.
TrainingCase shared_out(const std::string& kind, int ranks, int ep, int pp = 1, int tp = 1) {
  TrainingCase run = training_case(kind, Family::qwen3_moe);
  Options& o = run.options;
  o.model.num_experts = 8;
  o.model.num_experts_per_tok = 3;
  o.model.moe_intermediate_size = 24;
  o.train.global_batch = 8;
  o.parallel.pp = pp;
  o.parallel.tp = tp;
  o.parallel.dp = ranks / (pp * tp);
  o.parallel.ep = ep;
  o.parallel.bucket_elements = 20000;
  return run;
}

// Ranks: ReplicatedExperts 2 4

// With one holder of each expert and with several, whoever updates them: the same bits.
TEST(ReplicatedExperts, HaveTheBitsOfExpertsWithOwners) {
  for (const char* kind : {"adamw", "muon", "soap", "shampoo", "normuon"})
    for (const int ep : {2, 4}) {
      if (world().size() % ep != 0) continue;
      TrainingCase run = shared_out(kind, world().size(), ep);
      const Trained owned = train_together<float>(run, 4);
      run.options.parallel.partition = ParallelOptions::Partition::replicated;
      expect_same(owned, train_together<float>(run, 4), fmt::format("{}, ep {} of {}", kind, ep, world().size()));
    }
}

TEST(ReplicatedExperts, InPartsHaveTheBitsOfExpertsWithOwners) {
  using TpUpdate = ParallelOptions::TpUpdate;
  if (world().size() < 4) return;
  for (const auto& [kind, update] : {std::tuple("muon", TpUpdate::home), std::tuple("muon", TpUpdate::duplicated),
                                     std::tuple("muon", TpUpdate::distributed), std::tuple("soap", TpUpdate::home),
                                     std::tuple("soap", TpUpdate::duplicated)}) {
    TrainingCase run = shared_out(kind, 4, 2, 1, 2);
    run.options.parallel.tp_update = update;
    const Trained owned = train_together<float>(run, 4);
    run.options.parallel.partition = ParallelOptions::Partition::replicated;
    expect_same(owned, train_together<float>(run, 4), fmt::format("{}, tp_update {}", kind, static_cast<int>(update)));
  }
}

// Each rank updates all that it holds, and nothing else; the plan knows its loads and bytes.
TEST(ReplicatedExperts, AreUpdatedWhereTheyAreHeld) {
  TrainingCase run = shared_out("muon", world().size(), 2);
  run.options.parallel.partition = ParallelOptions::Partition::replicated;
  const Plan plan = make_plan({run.options, world().size()});
  EXPECT_NEAR(plan.dp_cost.ratio, 1, 1e-12);
  EXPECT_NEAR(plan.dp_cost.bound, 1, 1e-12);
  TypedExecutor<Host, float> executor(Host(), plan, world());
  executor.initialise(5);
  const int place = executor.grid().dp_rank % 2;
  for (std::size_t i = 0; i < executor.stage(0).arena().size(); ++i) {
    const TensorHolding& tensor = executor.stage(0).arena().layout().tensors[i];
    if (tensor.row_sharded) continue;
    const bool held = tensor.whole.expert < 0 || tensor.whole.expert / 4 == place;
    EXPECT_EQ(tensor.owned_rows(), held ? tensor.whole.rows : 0) << tensor.whole.name;
    EXPECT_EQ(tensor.saved, executor.grid().dp_rank < (tensor.whole.expert < 0 ? 1 : 2)) << tensor.whole.name;
  }
  EXPECT_EQ(rank_memory(plan, 1).size(), static_cast<std::size_t>(world().size()));
}

TrainingCase asynchronous(const std::string& kind, int ranks, int ep, Stash stash = Stash::on) {
  TrainingCase run = shared_out(kind, ranks, ep, 2);
  run.options.model.tie_word_embeddings = false;
  ParallelOptions& parallel = run.options.parallel;
  parallel.dp = 2;
  parallel.schedule = Kind::async_1f1b;
  parallel.clip_scope = ParallelOptions::ClipScope::stage;
  parallel.stash = stash;
  return run;
}

// Ranks: ExpertPipelines 4

// Two data-parallel ranks that hold the experts together have both stages of a pipeline each, or one of them.
TEST(ExpertPipelines, AsynchronousStagesHaveTheBitsOfThoseOfOneProcess) {
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const char* kind : {"adamw", "muon", "soap"})
    for (const Stash stash : {Stash::on, Stash::recompute}) {
      const TrainingCase run = asynchronous(kind, 4, 2, stash);
      const Trained together = train_pipeline(*half, run, 6);
      const std::string what = fmt::format("{}, stash {}", kind, static_cast<int>(stash));
      expect_same(together, train_pipeline(world(), run, 6), what);
      TrainingCase whole = run;
      whole.options.parallel.ep = 1;
      const Trained one = train_pipeline(world(), whole, 6);
      EXPECT_NEAR(one.loss[0], together.loss[0], 3e-6 * one.loss[0]) << what;
      EXPECT_LT(largest_difference(one, together), allowed_drift(kind, 6).loss) << what;
      EXPECT_LT(weight_difference(one, together), allowed_drift(kind, 6).weights) << what;
    }
}

TEST(ExpertPipelines, CorrectionsOfDelaysHaveTheBitsOfOneProcess) {
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const auto& [kind, correction] :
       {std::tuple("muon", Correction::prediction), std::tuple("adamw", Correction::dc_asgd)}) {
    TrainingCase run = asynchronous(kind, 4, 2);
    run.options.parallel.correction = {.kind = correction, .steps = 20, .decay = 0.3, .lambda = 1e4};
    const Trained together = train_pipeline(*half, run, 6);
    expect_same(together, train_pipeline(world(), run, 6), name(correction));
    run.options.parallel.correction = {};
    EXPECT_NE(together.loss, train_pipeline(world(), run, 6).loss);
  }
}

// A folder of all ranks that is gone after the test.
struct CheckpointFolder {
  std::string path = (std::filesystem::temp_directory_path() / fmt::format("sestina-copies-{}", ::getpid())).string();
  CheckpointFolder() {
    world().broadcast(path, 0);
    if (world().rank() == 0) std::filesystem::remove_all(path);
    world().barrier();
  }
  ~CheckpointFolder() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) std::filesystem::remove_all(path, ignored);
  }
};

std::vector<StateField> all_fields(TypedExecutor<Host, float>& run, bool reading) {
  std::vector<StateField> fields = run.fields();
  for (StateField& field : run.in_flight_fields(reading)) fields.push_back(std::move(field));
  return fields;
}

void write_checkpoint(TypedExecutor<Host, float>& run, const ParallelOptions& parallel, const std::string& folder) {
  WriterGroup group{world().rank(), world().size(), std::to_string(::getpid()), 30, parallel.dp,
                    parallel.tp,    parallel.pp};
  world().broadcast(group.token, 0);
  CheckpointWriter writer(folder, CheckpointOptions(), group);
  world().barrier();  // the first rank has removed what was left there
  RunState state;
  state.step = 5;
  take_snapshot(all_fields(run, false), state, {}, writer.slot());
  writer.save();
  writer.wait();
  for (const CheckpointWriter::Event& event : writer.take_events()) EXPECT_EQ(event.error, "");
  world().barrier();
}

// Stopped after three updates with passes in flight; goes on by `then`, which may be another layout.
Trained stopped_and_resumed(const TrainingCase& run, const TrainingCase& then, int steps) {
  constexpr int stop = 3;
  const CheckpointFolder folder;
  Trained result;
  PipelineState pipeline;
  {
    TypedExecutor<Host, float> first(Host(), make_plan({run.options, world().size()}), world());
    first.initialise(5);
    first.weights_changed();
    first.start_at(0);
    SampleBatches batches(run.options, first.share(), 0);
    train_finished(first, run.options, batches, 0, stop, result);
    write_checkpoint(first, run.options.parallel, folder.path);
    pipeline = first.pipeline_state().value();
  }
  TypedExecutor<Host, float> second(Host(), make_plan({then.options, world().size()}), world());
  second.initialise(6);
  EXPECT_TRUE(second.resume(stop, pipeline));
  const CheckpointReader reader(folder.path + "/checkpoints/step_00000005", Verify::opened);
  restore(second, reader, all_fields(second, true), false);
  second.weights_changed();
  SampleBatches batches(then.options, second.share(), stop);
  train_finished(second, then.options, batches, stop, steps, result);
  second.finish_gather();
  result.weights = whole_weights(second);
  return result;
}

TEST(ExpertPipelines, GoOnToTheSameBits) {
  for (const char* kind : {"adamw", "muon"})
    for (const Stash stash : {Stash::on, Stash::recompute}) {
      const TrainingCase run = asynchronous(kind, 4, 2, stash);
      expect_same(train_pipeline(world(), run, 7), stopped_and_resumed(run, run, 7),
                  fmt::format("{}, stash {}", kind, static_cast<int>(stash)));
    }
  // From ranks that hold half of the experts to ranks that hold all, and back.
  const TrainingCase apart = asynchronous("muon", 4, 2), whole = asynchronous("muon", 4, 1);
  const Trained one = train_pipeline(world(), whole, 7);
  for (const auto& [from, to] : {std::pair(apart, whole), std::pair(whole, apart)}) {
    const Trained changed = stopped_and_resumed(from, to, 7);
    EXPECT_LT(largest_difference(one, changed), allowed_drift("muon", 7).loss);
    EXPECT_LT(weight_difference(one, changed), allowed_drift("muon", 7).weights);
  }
}

// Activations that are saved with a mixture on every rank: the numbers of rows come back with them.
TEST(ExpertPipelines, SavedPassesOfAMixtureGoOnToTheSameBits) {
  const TrainingCase run = asynchronous("adamw", 4, 1, Stash::saved);
  expect_same(train_pipeline(world(), run, 7), stopped_and_resumed(run, run, 7), "saved");
}

}  // namespace
}  // namespace sestina

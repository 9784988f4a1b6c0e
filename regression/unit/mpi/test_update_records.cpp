// Measured updates on all layouts against those of one rank.
#include <gtest/gtest.h>

#include "app/train/update_proof.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

// The lines of the third update, which was measured, on all ranks; everything that is asked for is there.
template <class T>
std::vector<Metrics::UpdateLine> measured_lines(Communicator& ranks, TrainingCase run) {
  const Plan plan = make_plan({run.options, ranks.size()});
  TypedExecutor<Host, T> session(Host(), plan, ranks);
  session.initialise(5);
  Trained result;
  train_steps(session, run.options, 0, 3, result);
  const RankRecords records = gather_records(ranks, session.runs());
  UpdateProof proof(plan);
  EXPECT_TRUE(proof.require_asked(records));
  return proof.lines(records);
}

template <class T>
std::vector<Metrics::UpdateLine> lines_of_one(TrainingCase run) {
  const auto lone = make_lone_communicator();
  return measured_lines<T>(*lone, alone(run));
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-30); }

// Numbers are squares of differences of rounded weights: 1e-4 of them is rounding. Defects of nearly orthogonal
// directions are small differences of large sums.
void expect_equal(const std::vector<Metrics::UpdateLine>& some, const std::vector<Metrics::UpdateLine>& one,
                  const std::string& what) {
  ASSERT_EQ(some.size(), one.size()) << what;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const std::string which = what + ": " + one[i].pattern;
    EXPECT_EQ(some[i].pattern + some[i].rule + some[i].split, one[i].pattern + one[i].rule + one[i].split) << which;
    EXPECT_EQ(some[i].calls, 3) << which;
    EXPECT_EQ(some[i].decay, one[i].decay) << which;
    EXPECT_LT(relative(some[i].update_rms, one[i].update_rms), 1e-4) << which;
    EXPECT_LT(relative(some[i].update_ratio, one[i].update_ratio), 1e-4) << which;
    ASSERT_EQ(some[i].layers.size(), one[i].layers.size()) << which;
    for (std::size_t layer = 0; layer < one[i].layers.size(); ++layer)
      EXPECT_LT(relative(some[i].layers[layer], one[i].layers[layer]), 1e-4) << which << ", layer " << layer;
    ASSERT_EQ(some[i].orthogonality_defect.has_value(), one[i].orthogonality_defect.has_value()) << which;
    if (one[i].orthogonality_defect)
      EXPECT_NEAR(*some[i].orthogonality_defect, *one[i].orthogonality_defect, 1e-3) << which;
  }
}

TrainingCase measured(TrainingCase run) {
  run.options.metrics.updates_every = 3;
  return run;
}

// Ranks: UpdateRecordsOn 2 4

TEST(UpdateRecordsOn, DataParallelOwnersAndReplicas) {
  using Partition = ParallelOptions::Partition;
  for (const Partition partition : {Partition::optimal, Partition::replicated})
    for (const char* kind : {"muon", "adamw"}) {
      TrainingCase run = measured(grid_case(kind, 1));
      run.options.parallel.partition = partition;
      const auto one = lines_of_one<float>(run);
      expect_equal(measured_lines<float>(world(), run), one, fmt::format("{} {}", kind, static_cast<int>(partition)));
    }
}

// Shares, whose products are summed, and whole matrices anywhere in the stage.
TEST(UpdateRecordsOn, SharesOfMatrices) {
  for (const char* kind : {"muon", "normuon"})
    for (const int tp : {1, 2}) {
      TrainingCase run = measured(grid_case(kind, tp));
      run.options.parallel.partition = ParallelOptions::Partition::groups;
      const auto one = lines_of_one<float>(run);
      expect_equal(measured_lines<float>(world(), run), one, fmt::format("{} in shares, tp {}", kind, tp));
    }
}

// Homes, every rank by itself, and shards whose products are summed; heads that several ranks hold.
TEST(UpdateRecordsOn, TensorParallelMatrices) {
  for (const TpUpdate update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed})
    for (const Family family : {Family::llama, Family::qwen3}) {
      TrainingCase run = measured(grid_case("muon", 2, family));
      run.options.parallel.tp_update = update;
      const auto one = lines_of_one<float>(run);
      expect_equal(measured_lines<float>(world(), run), one, fmt::format("tp_update {}", static_cast<int>(update)));
    }
}

// Each slab is a matrix by itself: another update than that of one rank, of about the same size.
TEST(UpdateRecordsOn, TensorParallelSlabs) {
  TrainingCase run = measured(grid_case("muon", 2));
  run.options.parallel.tp_update = TpUpdate::blockwise;
  int slabs = 0;
  for (const Metrics::UpdateLine& line : measured_lines<float>(world(), run)) {
    EXPECT_GT(line.update_rms, 0) << line.pattern;
    slabs += line.split == "slabs";
    if (line.split == "slabs") EXPECT_LT(line.orthogonality_defect.value(), 0.6) << line.pattern;
  }
  EXPECT_GT(slabs, 0);
}

TEST(UpdateRecordsOn, PipelineStages) {
  for (const bool bf16_run : {false, true}) {
    TrainingCase run = measured(grid_case("muon", 1));
    run.options.model.num_hidden_layers = 4;
    run.options.train.global_batch = 4;
    run.options.parallel.dp = world().size() / 2;
    run.options.parallel.pp = 2;
    run.options.train.micro_batch = 1;
    run.options.train.precision = bf16_run ? TrainOptions::Precision::bf16 : TrainOptions::Precision::fp32;
    const auto one = bf16_run ? lines_of_one<bf16>(run) : lines_of_one<float>(run);
    expect_equal(bf16_run ? measured_lines<bf16>(world(), run) : measured_lines<float>(world(), run), one, "pipeline");
  }
}

// A stage that is late has another update than one that is not: what it tells is whole, and of one update.
TEST(UpdateRecordsOn, AsynchronousStages) {
  TrainingCase run = measured(grid_case("muon", 1));
  run.options.train.global_batch = 4;
  run.options.parallel.dp = world().size() / 2;
  run.options.parallel.pp = 2;
  run.options.parallel.schedule = ParallelOptions::Schedule::async_1f1b;
  run.options.parallel.clip_scope = ParallelOptions::ClipScope::stage;
  run.options.train.micro_batch = 1;
  for (const Metrics::UpdateLine& line : measured_lines<float>(world(), run)) {
    EXPECT_EQ(line.calls, 3) << line.pattern;
    EXPECT_GT(line.update_rms, 0) << line.pattern;
  }
}

// metrics.tensors_every: the diagnostics of an update after two others, by tensor, as far as this rank tells them.
std::map<std::string, UpdateDiagnostics::Tensor> diagnosed(Communicator& ranks, const TrainingCase& run) {
  const Plan plan = make_plan({run.options, ranks.size()});
  TypedExecutor<Host, float> session(Host(), plan, ranks);
  session.initialise(5);
  Trained result;
  train_steps(session, run.options, 0, 2, result);
  const auto diagnostics = StagesOf<Host, float>().make_diagnostics(session.runs(), plan);
  SampleBatches batches(run.options, session.share(), 2);
  for (int t = 3; t <= 4; ++t) {  // the second time from the vectors that the first one left
    session.backward(t, 1, batches);
    diagnostics->before_update();
    session.update();
    session.exchange();
    if (t == 3) diagnostics->after_update();
  }
  std::map<std::string, UpdateDiagnostics::Tensor> all;
  for (UpdateDiagnostics::Tensor& tensor : diagnostics->after_update()) all[tensor.name] = tensor;
  session.finish_gather();
  return all;
}

void expect_diagnosed(const TrainingCase& run, const std::string& what) {
  const auto lone = make_lone_communicator();
  const auto one = diagnosed(*lone, alone(run)), some = diagnosed(world(), run);
  EXPECT_EQ(one.size(), tensor_specs(run.options.model).size()) << what;
  auto told = static_cast<double>(some.size());
  world().all_reduce(&told, 1, Reduction::sum);
  EXPECT_EQ(told, static_cast<double>(one.size())) << what << ": each tensor is told of once";
  for (const auto& [name, tensor] : some) {
    ASSERT_TRUE(one.contains(name)) << what << ": " << name;
    EXPECT_LT(relative(tensor.weight_rms, one.at(name).weight_rms), 1e-5) << what << ": " << name;
    EXPECT_LT(relative(tensor.update_rms, one.at(name).update_rms), 1e-4) << what << ": " << name;
    EXPECT_LT(relative(tensor.spectral_norm, one.at(name).spectral_norm), 1e-4) << what << ": " << name;
  }
}

// Whole matrices of owners and homes, shards, shares, copies that count once, rows of AdamW's tensors.
TEST(UpdateRecordsOn, DiagnosticsAreThoseOfOneRank) {
  using Partition = ParallelOptions::Partition;
  for (const int tp : {1, 2})
    for (const auto& [kind, partition] :
         {std::pair("muon", Partition::replicated), std::pair("normuon", Partition::groups),
          std::pair("adamw", Partition::optimal)}) {
      TrainingCase run = grid_case(kind, tp);
      run.options.parallel.partition = partition;
      expect_diagnosed(run, fmt::format("{}, partition {}, tp {}", kind, static_cast<int>(partition), tp));
    }
  for (const TpUpdate update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed})
    for (const Family family : {Family::qwen3, Family::gpt}) {
      TrainingCase run = grid_case("muon", 2, family);
      run.options.parallel.tp_update = update;
      expect_diagnosed(run, fmt::format("tp_update {}, family {}", static_cast<int>(update), static_cast<int>(family)));
    }
}

TEST(UpdateRecordsOn, DiagnosticsOfPipelinesAreThoseOfOneRank) {
  TrainingCase run = grid_case("muon", 1);
  run.options.model.num_hidden_layers = 4;
  run.options.model.tie_word_embeddings = false;
  run.options.train.global_batch = 4;
  run.options.parallel.dp = world().size() / 2;
  run.options.parallel.pp = 2;
  run.options.train.micro_batch = 1;
  expect_diagnosed(run, "pipeline");
}

}  // namespace
}  // namespace sestina

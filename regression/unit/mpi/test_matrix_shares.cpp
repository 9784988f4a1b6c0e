// Matrices that are updated in shares (parallel.partition = "groups") against one rank that has them whole: the same
// numbers, the same state under the same names, the bytes and sums of the plan.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Of one layer, whose three largest matrices no two ranks balance without dividing some; in blocks these are two each.
TrainingCase in_groups(TrainingCase run, int layers = 1) {
  run.options.model.num_hidden_layers = layers;
  run.options.parallel.partition = ParallelOptions::Partition::groups;
  run.options.parallel.bucket_elements = 20000;
  run.options.parallel.micro_group_bytes = 20000;  // several rounds
  const std::string& kind = run.options.optimizer.kind;
  if (kind == "shampoo" || find_matrix_kind(kind)->max_dim != nullptr) run.options.optimizer.matrix->set("max_dim", 48);
  return run;
}

// All data parallel, all tensor parallel where the heads allow it, and both.
std::vector<TrainingCase> grids(const std::string& kind, Family family = Family::llama) {
  std::vector<TrainingCase> all;
  for (const int tp : tensor_sizes()) all.push_back(in_groups(grid_case(kind, tp, family)));
  return all;
}

std::string name_of(const TrainingCase& run) {
  return fmt::format("{}, {} x {}", run.options.optimizer.kind, run.options.parallel.dp, run.options.parallel.tp);
}

// Ranks: MatrixShares 2 3 4

TEST(MatrixShares, AgreeWithOneRank) {
  for (const std::string& kind : kind_names())
    for (const TrainingCase& run : grids(kind)) {
      const Trained one = train_alone<float>(alone(run), 5), several = train_together<float>(run, 5);
      // Bounds are those of larger models, in which one matrix counts for less: 2.8 times as much was seen with AVX2.
      const Drift allowed = allowed_drift(kind, 5);
      EXPECT_LT(largest_difference(one, several), 5 * allowed.loss) << name_of(run);
      EXPECT_LT(weight_difference(one, several), allowed.weights) << name_of(run);
    }
}

// Keys and values that several ranks hold, positions as a matrix that no rank has a shard of, heads by themselves,
// experts.
TEST(MatrixShares, AgreeOnOtherShards) {
  for (const Family family : {Family::qwen3, Family::gpt, Family::qwen3_moe})
    for (const bool per_head : {false, true})
      for (TrainingCase run : grids(per_head ? "muon" : "normuon", family)) {
        if (family == Family::qwen3_moe && run.options.parallel.tp > 1) continue;
        run.options.optimizer.per_head = per_head;
        if (family == Family::gpt)
          run.options.optimizer.group.push_back({.match = "*embed_positions*", .kind = run.options.optimizer.kind});
        const Trained one = train_alone<float>(alone(run), 5), several = train_together<float>(run, 5);
        EXPECT_LT(largest_difference(one, several), 1e-5) << name_of(run);  // 7e-5 of the weights was seen with AVX2
        EXPECT_LT(weight_difference(one, several), 3e-4) << name_of(run);
      }
}

TEST(MatrixShares, AgreeInBf16) {
  for (const char* kind : {"muon", "normuon", "adamuon", "soap", "shampoo"})
    for (const TrainingCase& run : grids(kind)) {
      const Trained one = train_alone<bf16>(alone(run), 6), several = train_together<bf16>(run, 6);
      EXPECT_LT(largest_difference(one, several), 0.01) << name_of(run);
    }
}

// Blocks, heads and whole matrices are updated as on one rank: where nothing else differs, so do no bits.
TEST(MatrixShares, PartsByThemselvesHaveTheSameBits) {
  if (world().size() == 3) return;  // sums of other trees
  for (const char* kind : {"soap", "kl-soap", "soap-muon"}) {
    TrainingCase run = in_groups(training_case(kind));
    run.options.parallel.dp = world().size();
    const Trained one = train_alone<float>(alone(run), 6), several = train_together<float>(run, 6);
    EXPECT_EQ(one.loss, several.loss) << kind;
    EXPECT_EQ(one.weights, several.weights) << kind;
  }
}

// Each field of one rank is there, its elements saved once, with the values that one rank has.
std::map<std::string, std::vector<double>> saved_values(TypedExecutor<Host, float>& run, Communicator& ranks,
                                                        const std::set<std::string>& paths) {
  std::vector<StateField> fields = run.optimizer_fields();
  for (StateField& field : run.model_fields()) fields.push_back(field);
  std::map<std::string, std::vector<double>> all;
  for (const std::string& path : paths) {
    double size = 0;
    for (const StateField& field : fields)
      if (field.path == path)
        size = static_cast<double>(field.shape[0] * (field.shape.size() > 1 ? field.shape[1] : 1));
    ranks.all_reduce(&size, 1, Reduction::max);
    std::vector<double> values(static_cast<std::size_t>(size), 0), count = values;
    for (const StateField& field : fields) {
      if (field.path != path || !field.saved) continue;
      const std::int64_t width = field.row_elements(), cols = field.shape.size() > 1 ? field.shape[1] : 1;
      for (std::int64_t r = field.row_begin; r < field.row_end; ++r)
        for (std::int64_t c = 0; c < width; ++c) {
          const auto from = static_cast<std::size_t>((r - field.row_begin) * width + c),
                     to = static_cast<std::size_t>(r * cols + field.col_begin + c);
          values[to] += field.dtype == DType::i64
                            ? static_cast<double>(static_cast<const std::int64_t*>(field.data)[from])
                            : static_cast<double>(static_cast<const float*>(field.data)[from]);
          count[to] += 1;
        }
    }
    ranks.all_reduce(values.data(), values.size(), Reduction::sum);
    ranks.all_reduce(count.data(), count.size(), Reduction::sum);
    EXPECT_EQ(count, std::vector<double>(count.size(), 1)) << path;
    all[path] = std::move(values);
  }
  return all;
}

// Eigenvectors of a factor, and what lies in them, are not continuous: they are there.
TEST(MatrixShares, StateIsThatOfWholeMatrices) {
  for (const std::string kind : {"muon", "normuon", "adamuon", "soap", "shampoo"})
    for (const TrainingCase& run : grids(kind)) {
      const auto lone = make_lone_communicator();
      TypedExecutor<Host, float> whole(Host(), make_plan({alone(run).options, 1}), *lone),
          shares(Host(), make_plan({run.options, world().size()}), world());
      std::set<std::string> paths;
      for (const StateField& field : whole.optimizer_fields()) paths.insert(field.path);
      for (const StateField& field : whole.model_fields()) paths.insert(field.path);
      for (const StateField& field : shares.optimizer_fields()) EXPECT_EQ(paths.count(field.path), 1u) << field.path;
      whole.initialise(5);
      shares.initialise(5);
      Trained unused;
      train_steps(whole, alone(run).options, 0, 1, unused);
      train_steps(shares, run.options, 0, 1, unused);
      const auto want = saved_values(whole, *lone, paths), got = saved_values(shares, world(), paths);
      for (const std::string& path : paths) {
        double difference = 0, size = 0;
        ASSERT_EQ(got.at(path).size(), want.at(path).size()) << path;
        for (std::size_t i = 0; i < want.at(path).size(); ++i) {
          difference = std::max(difference, std::abs(got.at(path)[i] - want.at(path)[i]));
          size = std::max(size, std::abs(want.at(path)[i]));
        }
        const bool continuous =
            kind != "soap" || (path.find("basis_") == path.npos && path.find("second_moment") == path.npos);
        if (continuous) EXPECT_LE(difference, 1e-4 * size) << path << ", " << name_of(run);
      }
    }
}

// The sums and exchanges of an update are those of the plan.
TEST(MatrixShares, SumsAreThoseOfThePlan) {
  std::vector<TrainingCase> all = grids("muon");
  for (const char* kind : {"normuon", "adamuon"})
    for (TrainingCase& run : grids(kind)) all.push_back(std::move(run));
  for (TrainingCase& run : all) {
    run.options.optimizer.matrix->set("ns_steps", 3);
    const Plan plan = make_plan({run.options, world().size()});
    TypedExecutor<Host, float> session(Host(), plan, world());
    session.initialise(5);
    Trained unused;
    train_steps(session, run.options, 0, 1, unused);
    auto most = static_cast<double>(session.exchanges_per_step().sums);
    world().all_reduce(&most, 1, Reduction::max);
    double planned = 0, rounds = 0;
    for (const Collective& collective : collectives(plan)) {
      if (collective.what == "products of shares") planned = static_cast<double>(collective.count);
      if (collective.what == "gradients of shares") rounds = static_cast<double>(collective.count);
    }
    EXPECT_EQ(most, planned) << name_of(run);
    EXPECT_GT(planned, 0) << name_of(run);
    EXPECT_GT(rounds, 1) << name_of(run);
  }
}

// Weights that leave the range of their type are told of, whoever has the share.
TEST(MatrixShares, OverflowsAreTold) {
  for (const char* kind : {"muon", "normuon"})
    for (const int tp : tensor_sizes()) {
      const TrainingCase run = in_groups(grid_case(kind, tp), 2);
      EXPECT_EQ(finite_after_overflow(run), (std::vector<bool>{true, false})) << name_of(run);
    }
}

}  // namespace
}  // namespace sestina

// What a step sends, counted, against what the plan says that it sends: calls and bytes of each kind.
#include <gtest/gtest.h>

#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/counting_communicator.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;
using Partition = ParallelOptions::Partition;

// The vocabulary and the rows of the stream divide by no number of ranks; a sum over the stream is too long for one
// round; several buckets and micro-groups; six micro-batches.
TrainingCase collectives_case(int tp, Family family = Family::llama, const std::string& kind = "muon") {
  TrainingCase run = training_case(kind, family);
  Options& o = run.options;
  o.model.num_attention_heads = 6;
  o.model.num_key_value_heads = family == Family::qwen3 || family == Family::olmo2 ? 1 : 6;
  o.model.head_dim = 8;
  o.model.intermediate_size = 84;
  o.data.sequence_length = o.model.max_position_embeddings = 47;
  o.train.global_batch = 12;
  o.train.micro_batch = 2;
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / tp;
  o.parallel.bucket_elements = 20000;
  o.parallel.micro_group_bytes = 60000;
  return run;
}

std::vector<int> tensor_sizes() {
  std::vector<int> sizes;
  for (const int tp : {1, 2, 3, 6})
    if (world().size() % tp == 0) sizes.push_back(tp);
  return sizes;
}

// Sums over a tensor-parallel group carry no name in the messages: all of one operation together.
std::string key_of(const Collective& c) {
  const bool sums = c.group == "tp" && c.operation == "all_reduce";
  return c.group + " " + c.operation + " " + (sums ? "sums" : c.what);
}

CountedKinds planned(const Options& options) {
  CountedKinds kinds;
  for (const Collective& c : collectives(make_plan(options))) {
    if (c.what == "votes" || c.what == "times") continue;  // the trainer's own
    CountedKind& kind = kinds[key_of(c)];
    kind.count += c.count;
    kind.bytes += c.bytes;
  }
  return kinds;
}

// One number of each rank: summed over the tensor-parallel groups where asked for, then the largest of all ranks.
double busiest(const ProcessGrid& grid, double value, bool add) {
  if (add) grid.tp_group->all_reduce(&value, 1, Reduction::sum);
  world().all_reduce(&value, 1, Reduction::max);
  return value;
}

CountedKinds over_ranks(const CountedKinds& mine, const ProcessGrid& grid) {
  std::string names;
  for (const auto& [name, kind] : mine) names += name + "\n";
  CountedKinds all;
  for (const std::string& text : world().all_gather(names))
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      all[text.substr(at, text.find('\n', at) - at)];
  CountedKinds sent;
  for (const auto& [name, nothing] : all) {
    const CountedKind own = mine.count(name) > 0 ? mine.at(name) : CountedKind();
    const bool add = name.find("all_to_all") != std::string::npos;
    CountedKind& kind = sent[name];
    double bytes = static_cast<double>(own.bytes);
    if (name.find("reduce_scatter gradients") != std::string::npos) {  // every piece by all but its owner
      grid.dp_group->all_reduce(&bytes, 1, Reduction::sum);
      bytes /= grid.dp - 1;
    }
    kind.count = static_cast<std::int64_t>(busiest(grid, static_cast<double>(own.count), false));
    kind.bytes = static_cast<std::int64_t>(busiest(grid, bytes, add));
    if (busiest(grid, static_cast<double>(own.to_others), add) == 0) sent.erase(name);  // copies on each rank
  }
  return sent;
}

template <class T>
void expect_as_planned(TrainingCase run, const std::string& what) {
  constexpr bool rounded = !std::is_same_v<T, float>;
  run.options.train.precision = rounded ? TrainOptions::Precision::bf16 : TrainOptions::Precision::fp32;
  CountedKinds mine;
  CountingCommunicator counted(world(), "all", run.options.parallel.tp_update == TpUpdate::home, mine);
  TypedExecutor<Host, T> session(Host(), make_plan({run.options, counted.size()}), counted);
  session.initialise(5);
  Trained result;
  train_steps(session, run.options, 0, 1, result);
  mine.clear();
  train_steps(session, run.options, 1, 2, result);
  const ParallelOptions& parallel = run.options.parallel;
  const ProcessGrid grid = make_grid(world(), parallel.dp, parallel.tp, parallel.node_size, false);
  const CountedKinds sent = over_ranks(mine, grid), plan = planned(run.options);
  for (const auto& [name, kind] : sent) {
    ASSERT_EQ(plan.count(name), 1u) << what << ": " << name << " is not in the plan";
    EXPECT_EQ(kind.count, plan.at(name).count) << what << ": " << name;
    EXPECT_EQ(kind.bytes, plan.at(name).bytes) << what << ": " << name;
  }
  for (const auto& [name, kind] : plan) EXPECT_EQ(sent.count(name), 1u) << what << ": " << name << " was not sent";
}

// Ranks: Collectives 2 4 6

TEST(Collectives, OfEveryFamilyAreThoseOfThePlan) {
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt})
    for (const int tp : tensor_sizes())
      for (const bool sequence_parallel : {true, false})
        for (const bool recompute : {false, true}) {
          if (tp == 1 && (recompute || !sequence_parallel)) continue;
          TrainingCase run = collectives_case(tp, family);
          run.options.parallel.sequence_parallel = sequence_parallel;
          run.options.train.recompute = recompute;
          const std::string what = fmt::format("family {}, tp {}, sequence parallel {}, recompute {}",
                                               static_cast<int>(family), tp, sequence_parallel, recompute);
          if (recompute)
            expect_as_planned<bf16>(run, what);
          else
            expect_as_planned<float>(run, what);
        }
}

TEST(Collectives, OfEveryPartitionAndUpdateAreThoseOfThePlan) {
  for (const int tp : tensor_sizes())
    for (const TpUpdate update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed, TpUpdate::blockwise})
      for (const Partition partition : {Partition::optimal, Partition::start_index, Partition::replicated})
        for (const Family family : {Family::llama, Family::qwen3}) {
          if (tp == 1 && update != TpUpdate::home) continue;
          TrainingCase run = collectives_case(tp, family);
          run.options.parallel.tp_update = update;
          run.options.parallel.partition = partition;
          expect_as_planned<bf16>(run,
                                  fmt::format("tp {}, update {}, partition {}, family {}", tp, static_cast<int>(update),
                                              static_cast<int>(partition), static_cast<int>(family)));
        }
}

TEST(Collectives, OfTheScalarOptimizerAndOfClippedScoresAreThoseOfThePlan) {
  for (const int tp : tensor_sizes()) expect_as_planned<float>(collectives_case(tp, Family::gpt, "adamw"), "adamw");
  for (const char* kind : {galore_int8, apollo_int8}) {  // rows travel as their codes
    expect_as_planned<float>(collectives_case(1, Family::llama, kind), kind);
    expect_as_planned<bf16>(collectives_case(1, Family::llama, kind), kind);
  }
  for (const int tp : tensor_sizes()) {
    TrainingCase clipped = collectives_case(tp);
    clipped.options.optimizer.qk_clip = 50;
    expect_as_planned<float>(clipped, "scores");
  }
}

// Ranks with more micro-batches than others: the plan counts those of the busiest.
TEST(Collectives, OfAnUnevenShareAreThoseOfThePlan) {
  TrainingCase run = collectives_case(1);
  run.options.train.global_batch = 2 * world().size() + 2;
  run.options.train.micro_batch = 1;
  expect_as_planned<float>(run, "uneven");
}

// Parts of the MLP that differ: the busiest tensor-parallel rank is the first.
TEST(Collectives, OfUnevenPartsAreThoseOfThePlan) {
  for (const std::int64_t size : {83, 88})
    for (const int tp : tensor_sizes())
      for (const TpUpdate update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed, TpUpdate::blockwise}) {
        if (tp == 1) continue;
        TrainingCase run = collectives_case(tp);
        run.options.model.intermediate_size = size;
        run.options.parallel.tp_update = update;
        expect_as_planned<bf16>(run, fmt::format("{} columns, tp {}, update {}", size, tp, static_cast<int>(update)));
      }
}

// Gradients are reduced, and weights come, for each micro-batch: blocks that are in their places do not come again.
TEST(Collectives, OfGradientsAndWeightsInTurnAreThoseOfThePlan) {
  for (const auto shard : {ParallelOptions::Shard::gradients, ParallelOptions::Shard::weights})
    for (const int tp : tensor_sizes())
      for (const bool tied : {false, true}) {
        if (tp == world().size()) continue;
        TrainingCase run = collectives_case(tp);
        run.options.model.num_hidden_layers = 5;
        run.options.model.tie_word_embeddings = tied;
        run.options.train.micro_batch = 1;
        run.options.train.global_batch = 3 * run.options.parallel.dp;
        run.options.parallel.bucket_elements = 0;
        run.options.parallel.shard = shard;
        const std::string what = fmt::format("shard {}, tp {}, tied {}", static_cast<int>(shard), tp, tied);
        expect_as_planned<bf16>(run, what);
        expect_as_planned<float>(run, what);
      }
}

}  // namespace
}  // namespace sestina

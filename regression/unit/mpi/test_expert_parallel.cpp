// Experts shared out over data-parallel ranks. First rows of tokens on their way to the ranks that hold their experts,
// and back: each row where it belongs, for odd numbers, experts and ranks without tokens, and every type. Then training
// against one rank that has all experts: the same numbers to rounding for every optimizer, with one holder of each
// expert and with several, in pipeline stages, on tensor-parallel ranks that have parts of every expert, in both kinds
// of precision.
#include <gtest/gtest.h>

#include "parallel/comm/expert_group.hpp"
#include "parallel/exchange/traffic.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

constexpr std::int64_t plenty = 1 << 20;

// Rows that a rank sends to an expert.
using RowsOf = std::int64_t (*)(int rank, std::size_t expert);

// What element (row, column) of the rows of a rank for an expert is: a small whole number, which every type holds.
double token_value(int rank, std::size_t expert, std::int64_t row, std::size_t col) {
  return static_cast<double>(
      (static_cast<std::size_t>(rank) * 31 + expert * 7 + static_cast<std::size_t>(row) * 3 + col) % 251);
}

template <class T, class Exec>
using TokenRows = Kokkos::View<T**, Kokkos::LayoutRight, typename Exec::memory_space>;

template <class T, class Exec>
void check_rows(RowsOf rows_of, std::size_t own, std::size_t width) {
  const auto ranks = tensor_ranks<Exec>();
  ExpertGroup<Exec> group(*ranks, plenty);
  const auto size = static_cast<std::size_t>(group.size()), experts = own * size;
  const int me = group.rank();
  ExpertRows rows;
  std::vector<T> mine, expected;
  for (std::size_t e = 0; e < experts; ++e) {
    rows.sent.push_back(rows_of(me, e));
    for (std::int64_t r = 0; r < rows.sent.back(); ++r)
      for (std::size_t c = 0; c < width; ++c) mine.push_back(static_cast<T>(token_value(me, e, r, c)));
  }
  group.exchange_counts(rows);
  std::vector<std::int64_t> received;
  for (std::size_t e = static_cast<std::size_t>(me) * own; e < static_cast<std::size_t>(me + 1) * own; ++e)
    for (int source = 0; source < group.size(); ++source) {
      received.push_back(rows_of(source, e));
      for (std::int64_t r = 0; r < received.back(); ++r)
        for (std::size_t c = 0; c < width; ++c) expected.push_back(static_cast<T>(token_value(source, e, r, c)));
    }
  ASSERT_EQ(rows.received, received);
  const TokenRows<T, Exec> from("from", mine.size() / width, width), there("there", expected.size() / width, width),
      back("back", mine.size() / width, width);
  Kokkos::deep_copy(
      from, Kokkos::View<const T**, Kokkos::LayoutRight, Kokkos::HostSpace>(mine.data(), from.extent(0), width));
  group.send(Exec(), rows, Matrix<const T, Exec>(from), Matrix<T, Exec>(there));
  group.finish(Exec(), {});
  Exec().fence();
  const std::vector<double> got = host_values<Exec>(there.data(), static_cast<std::int64_t>(there.size()));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<double>(float(expected[i]))) << i;
  group.send_back(Exec(), rows, Matrix<const T, Exec>(there), Matrix<T, Exec>(back));
  group.finish(Exec(), {});
  Exec().fence();
  const std::vector<double> returned = host_values<Exec>(back.data(), static_cast<std::int64_t>(back.size()));
  for (std::size_t i = 0; i < returned.size(); ++i) ASSERT_EQ(returned[i], static_cast<double>(float(mine[i]))) << i;
  EXPECT_EQ(group.take_count().sends, 2);
}

// Ranks: ExpertGroups 1 2 3 4
template <class Space>
class ExpertGroups : public testing::Test {};
TYPED_TEST_SUITE(ExpertGroups, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(ExpertGroups, RowsComeToTheirExpertsAndBack) {
  const RowsOf even = [](int, std::size_t) -> std::int64_t { return 4; };
  const RowsOf odd = [](int rank, std::size_t expert) {
    return static_cast<std::int64_t>((expert * 5 + 3 * std::size_t(rank)) % 7);
  };
  const RowsOf one_expert = [](int, std::size_t expert) -> std::int64_t { return expert == 1 ? 9 : 0; };
  const RowsOf one_source = [](int rank, std::size_t) -> std::int64_t { return rank == 0 ? 3 : 0; };
  const RowsOf none = [](int, std::size_t) -> std::int64_t { return 0; };
  for (const RowsOf rows : {even, odd, one_expert, one_source, none})
    for (const std::size_t own : {1u, 3u}) {
      check_rows<float, TypeParam>(rows, own, 8);
      check_rows<bf16, TypeParam>(rows, own, 5);
      check_rows<double, TypeParam>(rows, own, 3);
    }
}

TYPED_TEST(ExpertGroups, MoreRowsThanThereIsRoomForAreTold) {
  const auto ranks = tensor_ranks<TypeParam>();
  ExpertGroup<TypeParam> group(*ranks, 5 * ranks->size());
  ExpertRows rows;
  rows.sent.assign(static_cast<std::size_t>(group.size()), 5);
  EXPECT_NO_THROW(group.exchange_counts(rows));
  rows.sent[0] = 6;  // one more from each rank to the first
  if (group.rank() > 0) {
    EXPECT_NO_THROW(group.exchange_counts(rows));
    return;
  }
  try {
    group.exchange_counts(rows);
    FAIL() << "rows without room";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("parallel.expert_room"), std::string::npos) << error.what();
  }
}

// Eight experts of which a token passes three; ep ranks of the data-parallel ones hold them together.
TrainingCase expert_case(const std::string& kind, int ep, int pp = 1) {
  TrainingCase run = training_case(kind, Family::qwen3_moe);
  Options& o = run.options;
  o.model.num_experts = 8;
  o.model.num_experts_per_tok = 3;
  o.model.moe_intermediate_size = 24;
  o.model.norm_topk_prob = true;
  o.model.router_aux_loss_coef = 0.01;
  o.parallel.pp = pp;
  o.parallel.dp = world().size() / pp;
  o.parallel.ep = ep;
  o.parallel.bucket_elements = 20000;
  return run;
}

// The numbers of expert-parallel ranks that fit the data-parallel ones.
std::vector<int> expert_ranks(int dp) {
  std::vector<int> sizes;
  for (const int ep : {2, 4})
    if (dp % ep == 0) sizes.push_back(ep);
  return sizes;
}

// A sum over the tokens of several ranks is one product here, and a tree over micro-batches on one rank: gradients of
// experts differ by rounding, as in grids of tensor-parallel ranks.
void expect_same_training(const Trained& one, const Trained& several, const std::string& kind,
                          const std::string& what) {
  EXPECT_NEAR(one.loss[0], several.loss[0], 3e-6 * one.loss[0]) << what;
  EXPECT_NEAR(one.norm[0], several.norm[0], 3e-5 * one.norm[0]) << what;
  EXPECT_LT(largest_difference(one, several), allowed_drift(kind, 5).loss) << what;
  EXPECT_LT(weight_difference(one, several), allowed_drift(kind, 5).weights) << what;
}

// Ranks: ExpertParallel 2 4
template <class Space>
class ExpertParallel : public testing::Test {};
TYPED_TEST_SUITE(ExpertParallel, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(ExpertParallel, EveryOptimizerAgreesWithOneRank) {
  for (const std::string& kind : every_kind()) {
    const Trained one = train_alone<float, TypeParam>(alone(expert_case(kind, 1)), 5);
    for (const int ep : expert_ranks(world().size()))
      expect_same_training(one, train_together<float, TypeParam>(expert_case(kind, ep), 5), kind,
                           fmt::format("{}, ep {} of {}", kind, ep, world().size()));
  }
}

TYPED_TEST(ExpertParallel, AgreesInPipelineStages) {
  using Schedule = ParallelOptions::Schedule;
  if (world().size() < 4) return;
  for (const char* kind : {"adamw", "muon", "soap"}) {
    const Trained one = train_alone<float, TypeParam>(alone(expert_case(kind, 1)), 5);
    for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::zb_h1}) {
      TrainingCase run = expert_case(kind, 2, 2);
      run.options.parallel.schedule = schedule;
      expect_same_training(one, train_together<float, TypeParam>(run, 5), kind, fmt::format("{}, two stages", kind));
    }
  }
}

// The same with a shared expert, on tensor-parallel ranks, which have parts of all experts, or of those of their place.
TrainingCase split_case(const std::string& kind, int tp, int ep = 1, int pp = 1) {
  TrainingCase run = expert_case(kind, ep, pp);
  Options& o = run.options;
  o.model.shared_expert_intermediate_size = 16;
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / (pp * tp);
  o.parallel.micro_group_bytes = 60000;  // several micro-groups
  return run;
}

// Where matrices are updated, and which rows ranks have: the most expensive first.
TYPED_TEST(ExpertParallel, SplitExpertsAgreeWithOneRank) {
  using TpUpdate = ParallelOptions::TpUpdate;
  for (const char* kind : {"adamw", "muon", "soap"}) {
    const Trained one = train_alone<float, TypeParam>(alone(split_case(kind, 1)), 5);
    for (const auto& [tp, ep, update, split] :
         {std::tuple(2, 1, TpUpdate::home, true), std::tuple(2, 1, TpUpdate::distributed, false),
          std::tuple(4, 1, TpUpdate::duplicated, true), std::tuple(2, 2, TpUpdate::home, false),
          std::tuple(2, 2, TpUpdate::distributed, true)}) {
      if (world().size() % (tp * ep) != 0) continue;
      if (update == TpUpdate::distributed && std::string(kind) != "muon") continue;
      TrainingCase run = split_case(kind, tp, ep);
      run.options.parallel.tp_update = update;
      run.options.parallel.sequence_parallel = split;
      expect_same_training(one, train_together<float, TypeParam>(run, 5), kind,
                           fmt::format("{}, tp {}, ep {}, tp_update {}", kind, tp, ep, static_cast<int>(update)));
    }
  }
}

// Wherever a matrix is updated whole, and however often: the same bits. Each shard as a matrix by itself: the same
// numbers on however many ranks that hold all experts together.
TYPED_TEST(ExpertParallel, SplitExpertsAreUpdatedAsOtherMatrices) {
  using TpUpdate = ParallelOptions::TpUpdate;
  TrainingCase run = split_case("muon", 2);
  const Trained home = train_together<float, TypeParam>(run, 4);
  run.options.parallel.tp_update = TpUpdate::duplicated;
  const Trained duplicated = train_together<float, TypeParam>(run, 4);
  EXPECT_EQ(home.loss, duplicated.loss);
  EXPECT_EQ(home.weights, duplicated.weights);
  run.options.parallel.tp_update = TpUpdate::blockwise;
  const Trained blocks = train_together<float, TypeParam>(run, 5);
  EXPECT_EQ(blocks.loss[0], home.loss[0]);
  EXPECT_NE(blocks.loss.back(), home.loss.back());
  EXPECT_LT(blocks.loss.back(), blocks.loss[0]);
  if (world().size() < 4) return;
  TrainingCase apart = split_case("muon", 2, 2);
  apart.options.parallel.tp_update = TpUpdate::blockwise;
  expect_same_training(blocks, train_together<float, TypeParam>(apart, 5), "muon", "blockwise, ep 2");
}

// Shares of experts on ranks that hold others: together, whole, and in blocks.
TYPED_TEST(ExpertParallel, SharesOfExpertsAgreeWithOneRank) {
  for (const char* kind : {"muon", "soap", "shampoo"}) {
    const Trained one = train_alone<float, TypeParam>(alone(split_case(kind, 1)), 5);
    for (const auto& [tp, ep] : {std::pair(1, 2), {1, 4}, {2, 2}}) {
      if (world().size() % (tp * ep) != 0) continue;
      TrainingCase run = split_case(kind, tp, ep);
      run.options.parallel.partition = ParallelOptions::Partition::groups;
      expect_same_training(one, train_together<float, TypeParam>(run, 5), kind,
                           fmt::format("{} in shares, tp {}, ep {}", kind, tp, ep));
    }
  }
  if (world().size() < 4) return;
  const auto few = [](int tp, int ep) {  // large experts, so that ranks divide them
    TrainingCase run = split_case("muon", tp, ep);
    run.options.model.num_hidden_layers = 1;
    run.options.model.num_experts = 2;
    run.options.model.num_experts_per_tok = 1;
    run.options.model.moe_intermediate_size = 96;
    run.options.model.shared_expert_intermediate_size = 0;
    run.options.parallel.partition = ParallelOptions::Partition::groups;
    return run;
  };
  const std::vector<MatrixShare> shares = make_plan({few(2, 2).options, world().size()}).stages[0].shares;
  EXPECT_TRUE(std::any_of(shares.begin(), shares.end(), [](const MatrixShare& share) { return share.ranks > 1; }));
  const Trained one = train_alone<float, TypeParam>(alone(few(1, 1)), 5);
  for (const int tp : {1, 2})
    expect_same_training(one, train_together<float, TypeParam>(few(tp, 2), 5), "muon",
                         fmt::format("divided, tp {}", tp));
}

TYPED_TEST(ExpertParallel, SplitExpertsAgreeInPipelineStages) {
  if (world().size() < 4) return;
  const Trained one = train_alone<float, TypeParam>(alone(split_case("muon", 1)), 5);
  for (const auto schedule : {ParallelOptions::Schedule::one_f_one_b, ParallelOptions::Schedule::zb_h1}) {
    TrainingCase run = split_case("muon", 2, 1, 2);
    run.options.parallel.schedule = schedule;
    expect_same_training(one, train_together<float, TypeParam>(run, 5), "muon", "tp 2, two stages");
  }
}

TYPED_TEST(ExpertParallel, RecomputesItsBlocks) {
  for (TrainingCase run : {expert_case("muon", world().size()), split_case("muon", 2, world().size() / 2)}) {
    const Trained kept = train_together<float, TypeParam>(run, 5);
    run.options.train.recompute = true;
    const Trained again = train_together<float, TypeParam>(run, 5);
    EXPECT_EQ(kept.loss, again.loss);
    EXPECT_EQ(kept.weights, again.weights);
  }
}

// The calls of a step are those of the plan; of a tensor-parallel group those that move activations and gradients.
TYPED_TEST(ExpertParallel, SendsAsOftenAsThePlanSays) {
  for (const int tp : {1, 2})
    for (const bool recompute : {false, true})
      for (const bool split : {false, true}) {
        if (tp == 1 && split) continue;
        TrainingCase run = split_case("adamw", tp, world().size() / tp);
        run.options.train.recompute = recompute;
        run.options.parallel.sequence_parallel = split;
        const Plan plan = make_plan({run.options, world().size()});
        std::int64_t counts = 0, sends = 0, reductions = 0, gathers = 0, scatters = 0;
        for (const Collective& collective : collectives(plan)) {
          if (collective.group == "experts") (collective.what == "token counts" ? counts : sends) += collective.count;
          if (collective.group != "tp" || collective.what == "norm") continue;
          (collective.operation == "all_reduce"       ? reductions
           : collective.operation == "reduce_scatter" ? scatters
                                                      : gathers) += collective.count;
        }
        TypedExecutor<TypeParam, float> executor(TypeParam(), plan, world());
        executor.initialise(5);
        Trained result;
        train_steps(executor, run.options, 0, 3, result);
        const std::string what = fmt::format("tp {}, recompute {}, split {}", tp, recompute, split);
        const auto done = executor.run().shared().groups.experts.take_count();
        EXPECT_EQ(done.counts, 3 * counts) << what;
        EXPECT_EQ(done.sends, 3 * sends) << what;
        const auto summed = executor.run().shared().groups.tensor.take_count();
        EXPECT_EQ(summed.reductions, 3 * reductions) << what;
        EXPECT_EQ(summed.scatter_sums, 3 * scatters) << what;
        EXPECT_EQ(summed.gathers, 3 * gathers) << what;
      }
}

TYPED_TEST(ExpertParallel, GivesTheSameBitsAgain) {
  for (const TrainingCase& run : {expert_case("muon", 2), split_case("muon", 2, world().size() / 2)}) {
    const Trained first = train_together<float, TypeParam>(run, 4), second = train_together<float, TypeParam>(run, 4);
    EXPECT_EQ(first.loss, second.loss);
    EXPECT_EQ(first.weights, second.weights);
  }
}

// bf16 has 8 bits: where products are summed in another order, stored values differ by some 2^-9 of themselves.
TYPED_TEST(ExpertParallel, AgreesWithRoundedWeights) {
  for (const char* kind : {"adamw", "muon"}) {
    const Trained one = train_alone<bf16, TypeParam>(alone(expert_case(kind, 1)), 4);
    const Trained several = train_together<bf16, TypeParam>(expert_case(kind, world().size()), 4);
    EXPECT_LT(largest_difference(one, several), 4e-3) << kind;
    EXPECT_LT(weight_difference(one, several), 1e-2) << kind;
    // Parts of outputs are rounded before they are summed, as in grids of tensor-parallel ranks.
    const Trained whole = train_alone<bf16, TypeParam>(alone(split_case(kind, 1)), 4);
    const Trained split = train_together<bf16, TypeParam>(split_case(kind, 2, world().size() / 2), 4);
    EXPECT_LT(largest_difference(whole, split), 1e-2) << kind;
    EXPECT_LT(weight_difference(whole, split), 5e-2) << kind;
  }
}

}  // namespace
}  // namespace sestina

// Plans with expert parallelism: who holds and owns experts, where their gradients lie, what is sent, and loads against
// their bound.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <numeric>
#include <set>

#include "core/deck/deck.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "plan_rig.hpp"

namespace sestina {
namespace {

ModelConfig mixture(int experts = 8) {
  ModelConfig model = small_model();
  model.family = Family::qwen3_moe;
  model.num_experts = experts;
  model.num_experts_per_tok = 2;
  model.moe_intermediate_size = 96;
  return model;
}

Options expert_options(const char* kind, int dp, int ep, int experts = 8) {
  Options options = plan_options(mixture(experts), kind, dp);
  options.parallel.ep = ep;
  options.train.micro_batch = 1;
  return options;
}

TEST(ExpertPlan, OwnersHoldTheirExperts) {
  using Partition = ParallelOptions::Partition;
  for (const Partition partition :
       {Partition::optimal, Partition::balanced, Partition::layerwise, Partition::start_index})
    for (const auto& [dp, ep] : {std::pair(4, 4), {4, 2}, {8, 2}, {8, 8}, {6, 2}, {2, 2}}) {
      Options options = expert_options("muon", dp, ep);
      options.parallel.partition = partition;
      const StagePlan stage = make_plan(options).stages[0];
      std::set<int> owners;
      for (std::size_t i = 0; i < stage.specs.size(); ++i) {
        if (stage.owner[i] == scalar_tensor) continue;
        ASSERT_GE(stage.owner[i], 0);
        ASSERT_LT(stage.owner[i], dp);
        if (stage.specs[i].expert < 0) continue;
        EXPECT_EQ(stage.owner[i] % ep, stage.specs[i].expert / (8 / ep)) << stage.specs[i].name;
        owners.insert(stage.owner[i]);
      }
      EXPECT_EQ(owners.size(), static_cast<std::size_t>(dp)) << "all ranks update experts";
    }
}

// Every element of an expert is owned by one of its holders, every other element by one rank; shards of gradients do
// not overlap, and what a rank does not hold has no rows.
TEST(ExpertPlan, RowsAreOwnedOnceAndHeldByTheirPlace) {
  for (const char* kind : {"adamw", "muon"})
    for (const auto& [dp, ep] : {std::pair(4, 4), {4, 2}, {6, 2}}) {
      const Options options = expert_options(kind, dp, ep);
      const PlanInput input(options);
      const StagePlan plan = make_plan(input).stages[0];
      std::vector<std::int64_t> owned(plan.specs.size(), 0);
      for (int rank = 0; rank < dp; ++rank) {
        StagePlan stage = plan;
        lay_out_buckets(stage, input, 0, rank);
        const RankLayout layout = shard_layout(stage, gradient_buckets(stage, input.parallel), input, rank, 0);
        std::map<std::size_t, std::size_t> taken;  // begin and end of each gradient
        for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
          const TensorHolding& tensor = layout.tensors[i];
          const int expert = tensor.whole.expert;
          const bool held = expert < 0 || expert / (8 / ep) == rank % ep;
          EXPECT_EQ(tensor.local.rows, held ? tensor.whole.rows : 0) << tensor.whole.name;
          owned[i] += tensor.owned_rows();
          if (!held) continue;
          const auto n = static_cast<std::size_t>(tensor.local.elements());
          EXPECT_TRUE(taken.emplace(tensor.gradient_offset, tensor.gradient_offset + n).second) << tensor.whole.name;
        }
        std::size_t end = 0;
        for (const auto& [from, to] : taken) {
          EXPECT_GE(from, end);
          end = to;
        }
        EXPECT_LE(end, layout.gradient_elements);
      }
      for (std::size_t i = 0; i < owned.size(); ++i) EXPECT_EQ(owned[i], plan.specs[i].rows) << plan.specs[i].name;
    }
}

// Where gradients take turns, what a rank owns of experts lies after what it owns of all else, nothing over anything.
TEST(ExpertPlan, OwnedSumsLieApart) {
  for (const auto& [dp, ep] : {std::pair(4, 4), {4, 2}, {6, 2}}) {
    Options options = expert_options("muon", dp, ep);
    options.parallel.shard = ParallelOptions::Shard::gradients;
    const PlanInput input(options);
    StagePlan stage = make_plan(input).stages[0];
    for (int rank = 0; rank < dp; ++rank) {
      lay_out_buckets(stage, input, 0, rank);
      const GradientBuckets all = gradient_buckets(stage, input.parallel);
      const RankLayout layout = shard_layout(stage, all, input, rank, 0);
      const auto first_of_experts = static_cast<std::size_t>(all.begin.back() + buckets_of(all, false).sums_size(rank));
      std::map<std::size_t, std::size_t> taken;
      for (const TensorHolding& tensor : layout.tensors) {
        if (tensor.owned_elements() == 0) continue;
        EXPECT_EQ(tensor.sum_offset >= first_of_experts, tensor.whole.expert >= 0) << tensor.whole.name;
        EXPECT_TRUE(taken.emplace(tensor.sum_offset, tensor.sum_offset + tensor.owned_elements()).second);
      }
      auto end = static_cast<std::size_t>(all.begin.back());
      for (const auto& [from, to] : taken) {
        EXPECT_GE(from, end);
        end = to;
      }
      EXPECT_LE(end, layout.gradient_elements);
      EXPECT_EQ(layout.gradient_elements,
                first_of_experts + static_cast<std::size_t>(buckets_of(all, true).sums_size(rank / ep)));
    }
  }
}

// With one holder of each expert the bound is reached: experts are where they are, the rest is spread as without them.
TEST(ExpertPlan, LoadsAreAtTheirBound) {
  for (const auto& [dp, ep, gap] : {std::tuple(4, 4, 1e-6), {8, 8, 1e-6}, {4, 2, 0.05}, {8, 2, 0.05}}) {
    const Plan plan = make_plan(expert_options("muon", dp, ep));
    EXPECT_NEAR(plan.dp_cost.ratio, dp_ratio(plan.stages[0], dp), 1e-9);
    EXPECT_GE(plan.dp_cost.gap(), -1e-12) << dp << " x " << ep;
    EXPECT_LE(plan.dp_cost.gap(), gap) << dp << " x " << ep;
  }
}

// On tensor-parallel ranks, too, every matrix has one home, in a group of its owner, and homes are about as loaded as
// the bound says.
TEST(ExpertPlan, ExpertsHaveHomes) {
  for (const auto& [dp, ep] : {std::pair(4, 4), {4, 2}, {8, 2}}) {
    Options options = expert_options("muon", dp, ep);
    options.parallel.tp = 2;
    const Plan plan = make_plan(options);
    const StagePlan& stage = plan.stages[0];
    std::vector<int> grouped(stage.specs.size(), 0);
    for (int rank = 0; rank < dp; ++rank)
      for (const MicroGroup& group : stage.micro_groups.at(static_cast<std::size_t>(rank)))
        for (const int spec : group.specs) {
          EXPECT_EQ(stage.owner[static_cast<std::size_t>(spec)], rank);
          ++grouped[static_cast<std::size_t>(spec)];
        }
    for (std::size_t i = 0; i < grouped.size(); ++i) EXPECT_EQ(grouped[i], stage.owner[i] >= 0 ? 1 : 0);
    EXPECT_GE(plan.home_cost.gap(), -1e-12) << dp << " x " << ep;
    EXPECT_LE(plan.home_cost.gap(), 0.1) << dp << " x " << ep;
    EXPECT_EQ(rank_memory(plan, 1).size(), static_cast<std::size_t>(2 * dp));
  }
}

// Shares of experts may be on any rank; what sums their gradients holds them, and whole ones stay where they are if
// loads allow.
TEST(ExpertPlan, SharesComeFromHolders) {
  for (const char* kind : {"muon", "soap"})
    for (const auto& [dp, ep, tp] : {std::tuple(4, 4, 1), {4, 2, 1}, {8, 2, 1}, {64, 8, 1}, {4, 2, 2}}) {
      Options options = expert_options(kind, dp, ep);
      options.parallel.tp = tp;
      options.parallel.partition = ParallelOptions::Partition::groups;
      options.train.global_batch = 64;
      const PlanInput input(options);
      const Plan plan = make_plan(input);
      const StagePlan& stage = plan.stages[0];
      int moved = 0, whole = 0;
      for (std::size_t i = 0; i < stage.specs.size(); ++i) {
        if (stage.owner[i] == scalar_tensor) continue;
        EXPECT_TRUE(holds(stage.specs[i], input, stage.owner[i])) << stage.specs[i].name;
        if (stage.specs[i].expert < 0) continue;
        ++whole;
        if (stage.home[i] == in_shares) ++moved;
      }
      if (tp == 1 && dp <= 8) EXPECT_LE(moved, whole / 4) << kind << ", " << dp << " x " << ep;
      EXPECT_GE(plan.machine_cost.gap(), -1e-12);
      EXPECT_EQ(rank_memory(plan, 1).size(), static_cast<std::size_t>(dp * tp));
    }
}

TEST(ExpertPlan, LargeSharesGoToRanksWithLittle) {
  const std::vector<std::int64_t> cost = {7, 5, 3, 3, 2};
  EXPECT_EQ(owners_on_top(cost, {0, 1, 2, 2, 1}, {9, 0, 4}),
            (std::vector<int>{1, 2, 0, 0, 2}));  // of equal ones the first
  const std::vector<int> as_it_is = {1, 0, 0, 2, 2};
  EXPECT_EQ(owners_on_top(cost, as_it_is, {4, 4, 4}), as_it_is);
}

TEST(ExpertPlan, LoadsMoveOnlyToHolders) {
  ParallelOptions parallel;
  parallel.dp = 4;
  parallel.ep = 2;
  const PlacedItems items{{8, 8, 4, 4, 4, 4, 2, 2, 2, 2}, {-1, -1, 0, 0, 0, 0, 1, 1, 1, 1}};
  const std::vector<int> owner = balance_places(items, {0, 1, 0, 0, 2, 2, 1, 1, 3, 3}, parallel);
  std::vector<std::int64_t> load(4, 0);
  for (std::size_t i = 0; i < owner.size(); ++i) {
    load[static_cast<std::size_t>(owner[i])] += items.cost[i];
    if (items.place[i] >= 0) EXPECT_EQ(owner[i] % 2, items.place[i]);
  }
  EXPECT_EQ(*std::max_element(load.begin(), load.end()), 12);  // ranks 1 and 3 have less to begin with
}

TEST(ExpertPlan, ExchangesOfExpertsAreThoseOfTheirHolders) {
  const auto bytes_of = [](const Plan& plan, const std::string& what) {
    for (const Collective& collective : collectives(plan))
      if (collective.what == what) return collective.bytes;
    return std::int64_t{0};
  };
  const Plan whole = make_plan(expert_options("muon", 4, 1)), apart = make_plan(expert_options("muon", 4, 4)),
             two = make_plan(expert_options("muon", 4, 2));
  const ModelConfig model = mixture();
  const std::int64_t experts = 3 * model.num_hidden_layers * 8 * model.hidden_size * 96 * 4;
  EXPECT_EQ(bytes_of(apart, "expert gradients"), 0);
  EXPECT_EQ(bytes_of(two, "expert gradients"), experts / 2);
  EXPECT_EQ(bytes_of(two, "expert weights"), experts / 2);
  EXPECT_EQ(bytes_of(whole, "weights") - bytes_of(two, "weights"), experts);
  EXPECT_EQ(bytes_of(whole, "tokens"), 0);
  // Two micro-batches of 128 tokens on each rank and two choices: inputs twice, outputs, and the gradients of both.
  EXPECT_EQ(bytes_of(apart, "tokens"), 2 * model.num_hidden_layers * 5 * 4 * 128 * 2 * model.hidden_size * 4);
  EXPECT_EQ(bytes_of(apart, "choice weights"), 2 * model.num_hidden_layers * 2 * 4 * 128 * 2 * 4);
  for (const Collective& collective : collectives(two))
    EXPECT_LT(sent_bytes(collective, two), 2.0 * static_cast<double>(collective.bytes)) << collective.what;
}

TEST(ExpertPlan, RanksKeepTheirExpertsAlone) {
  const auto memory = [](int ep) { return rank_memory(make_plan(expert_options("muon", 4, ep)), 1); };
  const auto whole = memory(1), apart = memory(4);
  const std::size_t experts = 3 * 3 * 8 * std::size_t(mixture().hidden_size) * 96 * sizeof(float);
  ASSERT_EQ(apart.size(), 4u);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_LE(apart[rank].size.gradients + experts * 3 / 4, whole[rank].size.gradients + 4096);
    EXPECT_LE(apart[rank].size.master + experts * 3 / 4, whole[rank].size.master + 4096);
  }
  const auto state = [](const std::vector<RankMemory>& all) {
    return std::accumulate(all.begin(), all.end(), std::size_t{0},
                           [](std::size_t sum, const RankMemory& rank) { return sum + rank.saved; });
  };
  EXPECT_EQ(state(apart), state(whole)) << "a checkpoint has everything once";
}

// Qwen3-30B-A3B with two experts of every layer on each rank: loads at their bound, planned at once.
TEST(ExpertPlan, TheMixtureOf256RanksIsPlannedAtOnce) {
  Options options = plan_options(preset("qwen3-30b-a3b"), "muon", 64);
  options.parallel.pp = 4;
  options.parallel.ep = 64;
  options.train.global_batch = 256;
  options.train.micro_batch = 1;
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = make_plan(options);
  const std::vector<RankMemory> memory = rank_memory(plan, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // 2, or under sanitizers 13
  ASSERT_EQ(memory.size(), 256u);
  EXPECT_LE(plan.dp_cost.gap(), 1e-3);
  std::int64_t parameters = 0;
  for (const RankMemory& rank : memory) parameters += rank.size.parameters;
  EXPECT_NEAR(static_cast<double>(parameters), static_cast<double>(parameter_count(options.model)),
              1e-3 * static_cast<double>(parameter_count(options.model)));
}

TEST(ExpertPlan, RoomIsForAllRowsOrAsTheDeckSays) {
  ModelPart part = model_part(mixture(), 1, 0);
  EXPECT_EQ(part.expert_rows(100), 200);
  ParallelOptions parallel;
  parallel.dp = parallel.ep = 8;
  set_experts(part, parallel, 11);
  EXPECT_EQ(part.first_expert(), 3);
  EXPECT_TRUE(part.has_expert(3));
  EXPECT_FALSE(part.has_expert(4));
  EXPECT_EQ(part.expert_rows(100), 800);  // a token goes to the one expert here once
  parallel.expert_room = 1.25;
  set_experts(part, parallel, 0);
  EXPECT_EQ(part.expert_rows(100), 250);
}

// The errors of a deck with a mixture of eight experts and these lines in [parallel].
std::string errors_of(const std::string& parallel, const std::string& more = "") {
  Deck deck;
  deck.add_text(
      "[model]\nfamily = \"qwen3_moe\"\nhidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 4\n"
      "num_key_value_heads = 2\nvocab_size = 256\nnum_experts = 8\nnum_experts_per_tok = 2\n"
      "moe_intermediate_size = 48\n[train]\nglobal_batch = 8\n[parallel]\n" +
          parallel + more,
      "test", ".");
  try {
    Options options = Options::read(deck);
    require_trainable(deck, options);
    deck.finish();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExpertDeck, RefusesWhatDoesNotFit) {
  const auto told = [](const std::string& text, const char* word) { return text.find(word) != std::string::npos; };
  EXPECT_EQ(errors_of("dp = 4\nep = 2\n"), "");
  EXPECT_EQ(errors_of("dp = 3\n"), "");
  EXPECT_EQ(errors_of("dp = 4\nep = 2\npartition = \"groups\"\n", "[optimizer]\nkind = \"muon\"\n"), "");
  EXPECT_EQ(errors_of("dp = 4\nep = 2\ntp = 2\nshard = \"weights\"\n"), "");
  EXPECT_TRUE(told(errors_of("dp = 4\nep = 3\n"), "does not divide parallel.dp = 4"));
  EXPECT_TRUE(told(errors_of("dp = 16\nep = 16\n"), "does not divide model.num_experts = 8"));
  const std::string replicated = "dp = 4\nep = 2\npartition = \"replicated\"\n";
  EXPECT_EQ(errors_of(replicated, "[optimizer]\nkind = \"soap\"\n"), "");
  const std::string eager = "mode = \"async\"\nvisibility = \"eager\"\nstaleness = 2\n";
  EXPECT_TRUE(told(errors_of(replicated, "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\n" + eager),
                   "they hold different experts"));
  EXPECT_TRUE(told(errors_of("dp = 4\nep = 2\nexpert_room = 0.5\n"), "less room than the mean"));
  const std::string asynchronous = "dp = 4\nep = 2\npp = 2\nschedule = \"async-1f1b\"\n";
  EXPECT_EQ(errors_of(asynchronous), "");
  EXPECT_EQ(errors_of(asynchronous + "stash = \"recompute\"\n"), "");
  EXPECT_TRUE(told(errors_of(asynchronous + "stash = \"saved\"\n"), "rows that came to the experts of a rank"));
  EXPECT_TRUE(told(errors_of("dp = 4\nep = 2\n", "[run]\naudit_every = 2\ndeterministic = true\n"), "run.audit_every"));
}

}  // namespace
}  // namespace sestina

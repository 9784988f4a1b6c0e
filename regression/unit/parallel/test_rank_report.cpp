// What ranks tell each other of a step: how it travels, what it is for all ranks, and that the plan counts its bytes.
#include "parallel/plan/rank_report.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "parallel/exchange/traffic.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

// Eight ranks, two of each stage of four.
Options told_in_stages(ParallelOptions::Schedule schedule) {
  Options options = plan_options(preset("llama-8m"), "soap", 2);
  options.parallel.pp = 4;
  options.parallel.schedule = schedule;
  options.train.micro_batch = 1;
  return options;
}

std::int64_t planned_bytes(const Options& options, const std::string& what) {
  for (const Collective& one : collectives(make_plan({options, static_cast<int>(options.parallel.ranks())})))
    if (one.what == what) return one.bytes;
  return 0;
}

// Twenty numbers of a step, three ages of each stage, three votes; five sums of each stage and two of a rank.
TEST(RankReport, TravelsInAsManyBytesAsThePlanCounts) {
  const Options now = told_in_stages(ParallelOptions::Schedule::one_f_one_b);
  EXPECT_EQ(planned_bytes(now, "times"), 8 * (20 + 4 * 3) * 8);
  EXPECT_EQ(planned_bytes(now, "votes"), 2 * 3 * 8);
  EXPECT_EQ(planned_bytes(now, "drift of replicas"), 0);
  EXPECT_EQ(count_numbers(RankReport(4), {.times = true}), 20u + 4 * 3);
  EXPECT_EQ(count_numbers(RankReport(), {.times = true}), 20u);

  const Options later = told_in_stages(ParallelOptions::Schedule::async_1f1b);
  const ReportParts told = told_parts(later.parallel, later.optimizer, later.model);
  EXPECT_EQ(count_numbers(RankReport(4), told), 4u * 5 + 2 + 3 + 20 + 4 * 3);
  EXPECT_EQ(planned_bytes(later, "numbers of a step"),
            8 * 8 * static_cast<std::int64_t>(count_numbers(RankReport(4), told)));
  EXPECT_EQ(planned_bytes(later, "times"), 0);
}

// Three numbers more where state lies elsewhere between its uses.
TEST(RankReport, TellsOfTiersWhereThereAreSome) {
  Options away = told_in_stages(ParallelOptions::Schedule::one_f_one_b);
  away.optimizer.state_tier = Tier::nvme;
  EXPECT_EQ(planned_bytes(away, "times"), 8 * (20 + 4 * 3 + 4) * 8);
  RankReport sent, come;
  sent.tiers = {1, 2, 3, 0.5};
  std::vector<double> numbers(count_numbers(sent, {.tiers = true}));
  write_numbers(sent, {.tiers = true}, numbers.data());
  for (int rank = 0; rank < 2; ++rank) {
    RankReport of_rank;
    read_numbers(of_rank, {.tiers = true}, numbers.data());
    come.add(of_rank);
  }
  EXPECT_EQ(come.tiers.bytes_read, 2);
  EXPECT_EQ(come.tiers.waits, 6);
  EXPECT_EQ(come.tiers.wait_s, 0.5);  // the longest
}

// Two numbers more with experts: the largest load of all ranks, of equal ones that of the first layer.
TEST(RankReport, TellsOfLoadsWhereThereAreExperts) {
  Options experts = told_in_stages(ParallelOptions::Schedule::one_f_one_b);
  experts.model.family = Family::qwen3_moe;
  experts.model.num_experts = 4;
  experts.model.num_experts_per_tok = 2;
  experts.model.moe_intermediate_size = 16;
  EXPECT_EQ(planned_bytes(experts, "times"), 8 * (20 + 4 * 3 + 2) * 8);
  RankReport come;
  for (const LoadReport& load : {LoadReport{1.25, 0}, LoadReport{}, LoadReport{1.5, 5}, LoadReport{1.5, 2}}) {
    RankReport sent, of_rank;
    sent.loads = load;
    std::vector<double> numbers(count_numbers(sent, {.loads = true}));
    write_numbers(sent, {.loads = true}, numbers.data());
    read_numbers(of_rank, {.loads = true}, numbers.data());
    come.add(of_rank);
  }
  EXPECT_EQ(come.loads.largest().over_mean, 1.5);
  EXPECT_EQ(come.loads.largest().layer, 2);
}

TEST(RankReport, IsReadAsItWasWritten) {
  RankReport sent(2), come(2);
  std::vector<double> numbers(count_numbers(sent, {true, true, true, true})), again(numbers.size());
  std::iota(numbers.begin(), numbers.end(), 1.0);
  read_numbers(sent, {true, true, true, true}, numbers.data());
  EXPECT_EQ(sent.stages[1].squares, 6);
  EXPECT_EQ(sent.sums.overflows, 12);
  EXPECT_EQ(sent.votes.stop, 13);
  EXPECT_EQ(sent.step.seconds[0], 16);
  EXPECT_EQ(sent.ages[0].max, 36);
  EXPECT_EQ(sent.replicas.drift, 43);
  write_numbers(sent, {true, true, true, true}, again.data());
  EXPECT_EQ(again, numbers);
  read_numbers(come, {.votes = true}, again.data());  // a part by itself
  EXPECT_EQ(come.votes.save, 2);
  EXPECT_EQ(come.step.seconds[0], 0);
}

TEST(RankReport, OfAllRanksHasTheLargestVotesAndAllAges) {
  RankReport all(2), one(2);
  one.votes = {0, 1, 2};
  one.ages = {{4, 6, 2}, {}};
  one.replicas = {100, 0.25};
  one.scores = {30};
  all.add(one);
  one.votes = {1, 0, 1};
  one.ages = {{3, 3, 1}, {5, 5, 1}};
  one.replicas = {50, 0.125};
  one.scores = {20};
  all.add(one);
  EXPECT_EQ(all.votes.stop, 1);
  EXPECT_EQ(all.votes.save, 1);
  EXPECT_EQ(all.votes.failed_saves, 2);
  EXPECT_EQ(all.ages[0].max, 4);
  EXPECT_EQ(all.ages[0].sum, 9);
  EXPECT_EQ(all.ages[1].count, 1);
  EXPECT_EQ(all.replicas.bytes, 150);
  EXPECT_EQ(all.replicas.drift, 0.25);
  EXPECT_EQ(all.scores.largest, 30);
  all.clear();
  EXPECT_EQ(all.votes.stop, 0);
  EXPECT_EQ(all.ages[0].max, 0);
}

}  // namespace
}  // namespace sestina

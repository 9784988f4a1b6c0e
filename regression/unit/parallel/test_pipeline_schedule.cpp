// Schedules of pipelines: every dependency holds, nothing is left out, and their depths, delays and bubbles are those
// that are known of them.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "parallel/plan/pipeline_schedule.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

using Kind = ParallelOptions::Schedule;

// Each action once, after what it needs; a rank does one thing at a time.
void expect_legal(const PipelineOptions& set, const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, double> forward, backward, weight;  // ends, by stage and micro-batch
  std::map<int, double> busy;
  std::set<int> updated;
  for (int s = 0; s < set.stages; ++s)
    for (int m = 0; m < schedule.ahead[static_cast<std::size_t>(s)]; ++m) forward[{s, m}] = 0;
  for (const Action& action : schedule.all) {
    const std::pair<int, int> here(action.stage, action.micro);
    ASSERT_GE(action.begin, busy[set.rank_of(action.stage)]);
    busy[set.rank_of(action.stage)] = action.end;
    switch (action.kind) {
      case ActionKind::forward:
        ASSERT_TRUE(forward.emplace(here, action.end).second);
        if (action.stage > 0) ASSERT_GE(action.begin, forward.at({action.stage - 1, action.micro}));
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        ASSERT_TRUE(backward.emplace(here, action.end).second);
        ASSERT_GE(action.begin, forward.at(here));
        if (action.stage + 1 < set.stages) ASSERT_GE(action.begin, backward.at({action.stage + 1, action.micro}));
        break;
      case ActionKind::backward_weight:
        ASSERT_TRUE(weight.emplace(here, action.end).second);
        ASSERT_GE(action.begin, backward.at(here));
        break;
      case ActionKind::update:
        ASSERT_TRUE(updated.insert(action.stage).second);
        ASSERT_TRUE(backward.contains({action.stage, set.micros - 1}));
    }
  }
  EXPECT_EQ(backward.size(), static_cast<std::size_t>(set.stages * set.micros));
  if (set.kind == Kind::zb_h1) EXPECT_EQ(weight.size(), backward.size());
  if (set.kind == Kind::async_1f1b) EXPECT_EQ(updated.size(), static_cast<std::size_t>(set.stages));
}

TEST(PipelineSchedule, EveryDependencyHolds) {
  for (const Kind kind : {Kind::one_f_one_b, Kind::gpipe, Kind::interleaved, Kind::zb_h1, Kind::async_1f1b})
    for (const auto& [stages, ranks] : {std::pair(1, 1), {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 2}, {6, 3}})
      for (const int micros : {1, 2, 3, 5, 8}) {
        if (kind == Kind::async_1f1b && stages == 1) continue;
        const PipelineOptions options = pipeline_of(kind, stages, ranks, micros);
        SCOPED_TRACE(fmt::format("schedule {}, {} stages on {} ranks, {} micro-batches", static_cast<int>(kind), stages,
                                 ranks, micros));
        expect_legal(options, make_schedule(options));
      }
}

TEST(PipelineSchedule, KeepsAsManyMicroBatchesAsItsNameSays) {
  EXPECT_EQ(make_schedule(pipeline_of(Kind::gpipe, 4, 4, 8)).slots, std::vector<int>(4, 8));
  EXPECT_EQ(make_schedule(pipeline_of(Kind::one_f_one_b, 4, 4, 8)).slots, (std::vector<int>{4, 3, 2, 1}));
  for (const int slots : make_schedule(pipeline_of(Kind::zb_h1, 4, 4, 8)).slots) EXPECT_LE(slots, 4);
  EXPECT_EQ(make_schedule(pipeline_of(Kind::one_f_one_b, 4, 1, 8)).slots, std::vector<int>(4, 1));  // one process
}

// Of P ranks and a micro-batches, forward 1 and backward 2: (P-1) / (a+P-1) for 1F1B and GPipe; less when stages are
// interleaved, or when weight gradients fill the end.
TEST(PipelineSchedule, BubblesAreThoseOfTheLiterature) {
  const double plain = make_schedule(pipeline_of(Kind::one_f_one_b, 4, 4, 8)).bubble;
  EXPECT_NEAR(plain, 3.0 / 11, 1e-12);
  EXPECT_NEAR(make_schedule(pipeline_of(Kind::gpipe, 4, 4, 8)).bubble, plain, 1e-12);
  EXPECT_LT(make_schedule(pipeline_of(Kind::interleaved, 8, 4, 8)).bubble, 0.75 * plain);
  EXPECT_LT(make_schedule(pipeline_of(Kind::zb_h1, 4, 4, 8)).bubble, 0.65 * plain);
}

TEST(PipelineSchedule, DelaysAreRoundedUpToUpdates) {
  const PipelineOptions options = pipeline_of(Kind::async_1f1b, 4, 2, 2, 3);
  const PipelineSchedule schedule = make_schedule(options);
  EXPECT_EQ(schedule.ahead, (std::vector<int>{9, 6, 3, 0}));
  std::vector<int> delays;
  for (int s = 0; s < 4; ++s) delays.push_back(update_delay(options, s));
  EXPECT_EQ(delays, (std::vector<int>{5, 3, 2, 0}));
  EXPECT_EQ(schedule.slots, (std::vector<int>{10, 7, 4, 1}));
  EXPECT_EQ(update_delay(pipeline_of(Kind::one_f_one_b, 4, 2, 2), 0), 0);
}

// Copies of the weights in addition to the newest, by stage.
TEST(PipelineSchedule, SaysWhichWeightsAStageHolds) {
  const PipelineOptions options = pipeline_of(Kind::async_1f1b, 4, 4, 2, 1);  // delays 2, 1, 1, 0
  ParallelOptions parallel;
  const auto place = [&](int s) { return stage_place(options, make_schedule(options), parallel, 0, s); };
  const auto versions = [&] {
    std::vector<int> all;
    for (int s = 0; s < 4; ++s) all.push_back(place(s).versions());
    return all;
  };
  using Correction = ParallelOptions::DelayCorrection;
  EXPECT_EQ(versions(), (std::vector<int>{2, 1, 1, 0}));
  parallel.correction.kind = Correction::prediction;  // and the newest, predicted
  EXPECT_EQ(versions(), (std::vector<int>{3, 2, 2, 0}));
  parallel.correction.kind = Correction::none;
  parallel.stash = ParallelOptions::Stash::saved;
  EXPECT_EQ(versions(), (std::vector<int>{1, 0, 1, 0}));  // where updates come inside a minibatch's forwards
  parallel.correction.kind = Correction::pipemare;
  EXPECT_TRUE(place(1).estimates());
  EXPECT_FALSE(place(3).estimates());
}

// A merge drains as drain_every does; with both the newer drain counts.
TEST(PipelineSchedule, DrainsAtMerges) {
  const PipelineOptions options = pipeline_of(Kind::async_1f1b, 4, 4, 1, 1);
  ParallelOptions parallel;
  parallel.drain_every = 8;
  const StagePlace place = stage_place(options, make_schedule(options), parallel, 3, 0);
  std::vector<std::int64_t> versions;
  for (int minibatch = 0; minibatch < 12; ++minibatch) versions.push_back(place.version(minibatch));
  EXPECT_EQ(versions, (std::vector<std::int64_t>{0, 0, 0, 3, 3, 3, 6, 6, 8, 9, 9, 9}));
  EXPECT_EQ(place.in_flight_end(4, 3), 6);
}

TEST(PipelineSchedule, IsDrawnRankByRank) {
  const std::vector<std::string> rows = draw(make_schedule(pipeline_of(Kind::one_f_one_b, 2, 2, 2)), 9);
  EXPECT_EQ(rows, (std::vector<std::string>{"01..aa.bb", ".0aa1bb.."}));
}

}  // namespace
}  // namespace sestina

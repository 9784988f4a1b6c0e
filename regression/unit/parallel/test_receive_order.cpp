// The one order of a pipeline's messages: whatever the schedule, each rank starts its messages in the order in which
// they are sent, has those that an action needs, and finds their places free.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "parallel/step/receive_order.hpp"
#include "regression/unit/parallel/plan_rig.hpp"

namespace sestina {
namespace {

using Kind = ParallelOptions::Schedule;
using What = PipelineReceive::What;

// Ranks that play some updates: what they send is numbered in the order of `all`.
class PlayedPipeline {
 public:
  PlayedPipeline(const PipelineOptions& pipe, bool tied) : pipe_(pipe), tied_(tied), schedule_(make_schedule(pipe)) {}

  void play(int updates) {
    play_actions(forwards_ahead(schedule_), 0);
    for (int update = 0; update < updates; ++update) play_actions(schedule_.all, update * pipe_.micros);
    EXPECT_EQ(started_.size(), sent_.size());  // nothing is left for an update to come
  }

 private:
  using Message = std::tuple<What, int, int>;  // to this stage, number in the run

  // Each rank on its own starts its receives; `all` tells only what has been sent.
  void play_actions(const std::vector<Action>& all, int first) {
    std::vector<ReceiveLists> lists;
    std::vector<std::size_t> next(static_cast<std::size_t>(pipe_.ranks), 0);
    for (int rank = 0; rank < pipe_.ranks; ++rank) lists.push_back(receive_order(pipe_, all, rank, tied_));
    for (const Action& action : all) {
      const auto rank = static_cast<std::size_t>(pipe_.rank_of(action.stage));
      start(lists[rank][next[rank]++], static_cast<int>(rank), first);
      run(action, first + action.micro);
    }
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      ASSERT_EQ(next[rank] + 1, lists[rank].size());
      start(lists[rank].back(), static_cast<int>(rank), first);
    }
  }
  void start(const std::vector<PipelineReceive>& receives, int rank, int first) {
    for (const PipelineReceive& receive : receives) {
      const Message message(receive.what, receive.stage, first + receive.micro);
      ASSERT_EQ(pipe_.rank_of(receive.stage), rank);
      ASSERT_TRUE(sent_.contains(message));
      ASSERT_TRUE(started_.insert(message).second);
      note(rank, sent_[message]);
      if (receive.what == What::activation)
        expect_free(schedule_.activations, receive.stage - 1, receive.stage, message);
      if (receive.what == What::gradient) expect_free(schedule_.gradients, receive.stage, receive.stage, message);
    }
  }
  // Whose place it takes is read no more.
  void expect_free(const std::vector<int>& places, int boundary, int reader, const Message& message) {
    const int before = std::get<2>(message) - places[static_cast<std::size_t>(boundary)];
    EXPECT_LT(before, ended_[reader]) << "stage " << reader << ", micro-batch " << std::get<2>(message);
  }
  void run(const Action& action, int micro) {
    const int stage = action.stage, last = pipe_.stages - 1;
    const bool backward = action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
    if (action.kind == ActionKind::forward) {
      if (stage > 0) need(What::activation, stage - 1, stage, micro);
      if (stage < last) send(What::activation, stage, stage + 1, micro);
      if (tied_ && stage == 0 && micro % pipe_.micros == 0) send(What::head, 0, last, micro);
    } else if (backward) {
      if (tied_ && stage == last) need(What::head, 0, last, micro / pipe_.micros * pipe_.micros);
      if (stage < last) need(What::gradient, stage + 1, stage, micro);
      if (tied_ && stage == last) send(What::head_gradient, last, 0, micro);
      if (stage > 0) send(What::gradient, stage, stage - 1, micro);
    }
    if (action.kind == ActionKind::backward_weight || (pipe_.kind != Kind::zb_h1 && backward))
      ended_[stage] = micro + 1;
  }
  void need(What what, int from, int to, int micro) {
    if (pipe_.rank_of(from) == pipe_.rank_of(to)) return;
    EXPECT_TRUE(started_.contains({what, to, micro}))
        << static_cast<int>(what) << ", stage " << to << ", micro " << micro;
  }
  void send(What what, int from, int to, int micro) {
    if (pipe_.rank_of(from) == pipe_.rank_of(to)) return;
    const int number = static_cast<int>(sent_.size());
    ASSERT_TRUE(sent_.emplace(Message(what, to, micro), number).second);
    note(pipe_.rank_of(from), number);
  }
  // The messages of a rank, in the order in which it starts them: that in which all were sent.
  void note(int rank, int number) {
    EXPECT_GT(number, latest_.contains(rank) ? latest_[rank] : -1) << "rank " << rank;
    latest_[rank] = number;
  }

  PipelineOptions pipe_;
  bool tied_;
  PipelineSchedule schedule_;
  std::map<Message, int> sent_;
  std::set<Message> started_;
  std::map<int, int> ended_, latest_;
};

TEST(ReceiveOrder, IsOneOrderOnAllRanksWithFreePlaces) {
  for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::interleaved, Kind::zb_h1, Kind::async_1f1b})
    for (const auto& [stages, ranks] : {std::pair{2, 2}, {3, 3}, {4, 2}, {4, 4}, {8, 4}, {8, 8}})
      for (const int micros : {1, 2, 4, 8})
        for (const int delay_scale : {1, 2})
          for (const bool tied : {false, true}) {
            if (kind == Kind::interleaved && stages == ranks) continue;
            if (delay_scale > 1 && kind != Kind::async_1f1b) continue;
            SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(kind) << ", " << stages << " stages, "
                                            << ranks << " ranks, " << micros << " micro-batches, tied " << tied);
            PlayedPipeline(pipeline_of(kind, stages, ranks, micros, delay_scale), tied).play(4);
          }
}

// In 1F1B with two ranks the first one sends two activations before it waits for a gradient: the second one asks for
// both before it sends that.
TEST(ReceiveOrder, AsksForTwoActivationsBeforeAGradientGoes) {
  const PipelineOptions pipe = pipeline_of(Kind::one_f_one_b, 2, 2, 3);
  const ReceiveLists second = receive_order(pipe, make_schedule(pipe).all, 1, false);
  ASSERT_EQ(second.size(), 7U);  // F0 B0 F1 B1 F2 B2, and after them
  const std::vector<PipelineReceive> first_two = {{What::activation, 1, 0}, {What::activation, 1, 1}};
  EXPECT_EQ(second[0], first_two);
}

}  // namespace
}  // namespace sestina

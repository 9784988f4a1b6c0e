#include "parallel/step/receive_order.hpp"

namespace sestina {
namespace {

using What = PipelineReceive::What;

// Returns what an action sends to other ranks, in the order in which it does so (StageRun).
std::vector<PipelineReceive> sent_by(const PipelineOptions& pipe, const Action& action, bool tied) {
  const int last = pipe.stages - 1, stage = action.stage;
  std::vector<PipelineReceive> sent;
  const auto add = [&](bool due, What what, int to) {
    if (due && pipe.rank_of(to) != pipe.rank_of(stage)) sent.push_back({what, to, action.micro});
  };
  if (action.kind == ActionKind::forward) {
    add(stage < last, What::activation, stage + 1);
    add(tied && stage == 0 && action.micro % pipe.micros == 0, What::head, last);
  } else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input) {
    add(tied && stage == last, What::head_gradient, 0);
    add(stage > 0, What::gradient, stage - 1);
  }
  return sent;
}

}  // namespace

ReceiveLists receive_order(const PipelineOptions& pipe, std::span<const Action> all, int rank, bool tied) {
  ReceiveLists lists(1);
  for (const Action& action : all) {
    if (pipe.rank_of(action.stage) == rank) {
      lists.emplace_back();
      continue;
    }
    for (const PipelineReceive& receive : sent_by(pipe, action, tied))
      if (pipe.rank_of(receive.stage) == rank) lists.back().push_back(receive);
  }
  return lists;
}

std::vector<Action> forwards_ahead(const PipelineSchedule& schedule) {
  std::vector<Action> all;
  for (int stage = 0; stage < static_cast<int>(schedule.ahead.size()); ++stage)
    for (int micro = 0; micro < schedule.ahead[static_cast<std::size_t>(stage)]; ++micro)
      all.push_back({ActionKind::forward, stage, micro, 0, 0});
  return all;
}

}  // namespace sestina

#include "core/memory/block_tier.hpp"

#include <array>
#include <optional>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using enum BlockState;

struct Transition {
  BlockState from;
  BlockEvent event;
  BlockState to;
};
constexpr std::array transitions = {
    Transition{clean, BlockEvent::use, computing},     Transition{ready, BlockEvent::use, computing},
    Transition{dirty, BlockEvent::use, computing},     Transition{computing, BlockEvent::use, computing},
    Transition{clean, BlockEvent::look, computing},    Transition{ready, BlockEvent::look, computing},
    Transition{dirty, BlockEvent::look, computing},    Transition{computing, BlockEvent::look, computing},
    Transition{clean, BlockEvent::claim, computing},   Transition{ready, BlockEvent::claim, computing},
    Transition{dirty, BlockEvent::claim, computing},   Transition{on_nvme, BlockEvent::claim, computing},
    Transition{computing, BlockEvent::release, ready},  // the last one
    Transition{clean, BlockEvent::evict, dirty},       Transition{ready, BlockEvent::evict, dirty},
    Transition{dirty, BlockEvent::write, writing},     Transition{writing, BlockEvent::written, on_nvme},
    Transition{writing, BlockEvent::failed, ready},    Transition{on_nvme, BlockEvent::read, reading},
    Transition{reading, BlockEvent::arrived, clean},   Transition{reading, BlockEvent::failed, on_nvme},
};

std::optional<BlockState> after(BlockState from, BlockEvent event) {
  for (const Transition& t : transitions)
    if (t.from == from && t.event == event) return t.to;
  return std::nullopt;
}

}  // namespace

std::string_view name(BlockState state) {
  static constexpr std::string_view names[] = {"clean", "computing", "ready", "dirty", "writing", "on_nvme", "reading"};
  return names[static_cast<int>(state)];
}

std::string_view name(BlockEvent event) {
  static constexpr std::string_view names[] = {"use",   "look",    "claim", "release", "evict",
                                               "write", "written", "read",  "arrived", "failed"};
  return names[static_cast<int>(event)];
}

bool BlockTier::allows(BlockEvent event) const { return after(state_, event).has_value(); }

void BlockTier::apply(BlockEvent event) {
  const std::optional<BlockState> to = after(state_, event);
  SESTINA_REQUIRE(to.has_value(), "a block that is {} cannot take {}", name(state_), name(event));
  const bool writes = event == BlockEvent::use || event == BlockEvent::claim;
  if (writes || event == BlockEvent::look) ++users_;
  if (writes) changed_ = true;
  if (event == BlockEvent::written || event == BlockEvent::arrived) changed_ = false;
  if (event == BlockEvent::release && --users_ > 0) return;
  state_ = *to;
}

}  // namespace sestina

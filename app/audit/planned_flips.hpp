// Flips of bits on purpose, where SESTINA_FAULT plans one: each at its place in an update. No Kokkos.
#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/planned_fault.hpp"
#include "parallel/comm/flipped_messages.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

class PlannedFlips {
 public:
  // A fault that is no flip, or is another rank's, is none here. Where a message is to be met, the groups of the run
  // are to be made from world(); collective then. The group must outlive it.
  PlannedFlips(const std::optional<PlannedFault>&, Communicator& world);
  Communicator& world() const { return flipped_ ? *flipped_ : world_; }
  bool planned() const { return fault_.has_value(); }

  // Called before the passes of update t: flips bits of a weight that this rank computes with, of a moment or of a
  // basis, or in a message that comes next, where that is due.
  void before_passes(std::int64_t t, const Executor&, BitAudit&);
  // Returns what is due in the gradients, or in an activation, of a micro-batch of update t (audited: that of this rank
  // that an audit looks at, none: there is no audit), or of one that is computed again in it: these meet only a fault
  // that persists.
  std::optional<BitFlip> in_pass(std::int64_t t, bool again, std::optional<int> audited = {});
  // Called when the state after update t has been copied to be saved: flips bits of a copy.
  void in_copies(std::int64_t t, const std::vector<StateField>&, BitAudit&);

 private:
  std::optional<BitFlip> take(std::string_view what, std::int64_t t);
  void flip_one_of(std::vector<StateField>, std::int64_t t, BitAudit&);

  std::optional<PlannedFault> fault_;
  Communicator& world_;
  std::shared_ptr<MessageFlip> message_;
  std::unique_ptr<Communicator> flipped_;  // null: no message is met
  std::uint64_t attempts_ = 0;
};

}  // namespace sestina

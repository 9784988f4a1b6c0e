#include "app/audit/planned_flips.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "kernels/base/random.hpp"

namespace sestina {

PlannedFlips::PlannedFlips(const std::optional<PlannedFault>& fault, Communicator& world) : world_(world) {
  if (!fault || fault->kind != PlannedFault::Kind::flip) return;
  if (fault->rank == world.rank()) fault_ = fault;
  if (fault->what != "message") return;
  message_ = std::make_shared<MessageFlip>();
  flipped_ = with_flips(world.split(0, world.rank()), message_);
}

// A fault that persists meets the same tensor every time, at another word and other bits; one that does not is over
// after its first time.
std::optional<BitFlip> PlannedFlips::take(std::string_view what, std::int64_t t) {
  if (!fault_ || !fault_->is_due(what, t, world_.rank()) || (attempts_ > 0 && !fault_->persists())) return std::nullopt;
  const std::uint64_t tensor = stream_of(fault_->place, fmt::format("tensor from update {}", fault_->first));
  const std::uint64_t place = stream_of(fault_->place, fmt::format("word in update {}, {}", t, attempts_++));
  return BitFlip{tensor, place, fault_->bits};
}

std::optional<BitFlip> PlannedFlips::in_pass(std::int64_t t, bool again, std::optional<int> audited) {
  if (!fault_ || (again && !fault_->persists())) return std::nullopt;
  const bool in_activation = fault_->what == "activation";
  std::optional<BitFlip> flip = take(in_activation ? "activation" : "gradient", t);
  if (!flip) return flip;
  flip->in_activation = in_activation;
  flip->micro = fault_->micro.value_or(audited.value_or(0));
  return flip;
}

void PlannedFlips::before_passes(std::int64_t t, const Executor& executor, BitAudit& bits) {
  if (!fault_) return;
  if (fault_->what == "weight") return flip_one_of(bits.weight_fields(), t, bits);
  if (fault_->what == "message") {
    if (const std::optional<BitFlip> flip = take("message", t)) message_->next = flip;
    return;
  }
  if (fault_->what != "moment" && fault_->what != "basis") return;
  std::vector<StateField> fields = executor.optimizer_fields();
  std::erase_if(fields, [&](const StateField& field) { return field.of_basis != (fault_->what == "basis"); });
  flip_one_of(std::move(fields), t, bits);
}

void PlannedFlips::in_copies(std::int64_t t, const std::vector<StateField>& copies, BitAudit& bits) {
  if (!fault_ || fault_->what != "checkpoint") return;
  std::vector<StateField> fields = copies;
  std::erase_if(fields, [](const StateField& field) { return field.data == nullptr; });  // read while it is written
  flip_one_of(std::move(fields), t, bits);
}

void PlannedFlips::flip_one_of(std::vector<StateField> fields, std::int64_t t, BitAudit& bits) {
  std::erase_if(fields, [](const StateField& field) { return field.bytes() == 0; });
  const std::optional<BitFlip> flip = take(fault_->what, t);
  if (!flip) return;
  if (fields.empty()) fail(ExitCode::usage, "SESTINA_FAULT: this run has no {} to flip", fault_->what);
  const StateField& field = fields[flip->tensor % fields.size()];
  spdlog::warn("SESTINA_FAULT flips bits of {} {} in update {}", fault_->what, field.path, t);
  bits.flip(field, *flip);
}

}  // namespace sestina

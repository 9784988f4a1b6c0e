// Keys of [optimizer] that every kind has: what becomes of the update that a kind makes before it moves the weight, and
// what follows a schedule of its own. The formulas stand in kernels/optimizer/update_rules.hpp. No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/optimizer/update_rules.hpp"

namespace sestina {

class Deck;
struct Options;
struct ScheduleOptions;

// Numbers that change with the updates t = 1, 2, ..., in addition to the learning rate.
struct UpdateSchedule {
  // The weight decay is that of the deck, in proportion to the learning rate's factor, or half a cosine to 0 at
  // `steps`.
  enum class Decay : std::uint8_t { constant, rate, cosine } decay = Decay::constant;
  std::int64_t steps = 0;
  std::vector<std::array<double, 2>> momentum;  // (update, value): linear between, constant outside; empty: none

  // Returns the factor of the weight decay in update t, whose learning rate has this factor.
  double decay_factor(std::int64_t t, double rate_factor) const;
  // Returns the momentum of update t; empty: the kind's own.
  std::optional<double> momentum_at(std::int64_t t) const;
};

UpdateRules read_update_rules(Deck&);
// Returns the keys of the rules ("hyperball"), and whether each is on.
std::array<std::pair<const char*, bool>, 9> rules_of(const UpdateRules&);
// Returns the key of the first rule that is on, "optimizer.hyperball" for example; "": none is.
std::string key_of(const UpdateRules&);
// has_momentum: the kind has a key `momentum`, which the schedule replaces.
UpdateSchedule read_update_schedule(Deck&, const ScheduleOptions&, bool has_momentum);
// Collects errors where rules meet what they cannot act on: call it when all sections are read.
void require_rules_fit(Deck&, const Options&);

}  // namespace sestina

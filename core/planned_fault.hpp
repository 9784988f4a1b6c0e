// Faults on purpose: what SESTINA_FAULT asks for, so that what looks for silent corruption can be tried. Nothing but
// tests and reports sets it. No Kokkos.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/model/first_bad.hpp"

namespace sestina {

struct PlannedFault {
  enum class Kind { flip, nan };
  Kind kind = Kind::flip;
  std::string what;        // of PlannedFault's list for its kind
  std::int64_t first = 1;  // updates first to last, counted from 1
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  int rank = 0;             // the rank that it happens on
  int bits = 1;             // flips so many bits of one word
  std::uint64_t place = 0;  // chooses tensor, word and bits together with the update
  // Of a gradient or an activation: the micro-batch of the rank; none: the one that an audit of the update looks at,
  // else the first.
  std::optional<int> micro = {};
  bool persists() const { return last == std::numeric_limits<std::int64_t>::max(); }
  bool is_due(std::string_view place, std::int64_t update, int on_rank) const {
    return what == place && on_rank == rank && first <= update && update <= last;
  }
};

// Reads "flip:WHAT:step=N", "flip:WHAT:from=N" (in every update from N on) or "nan:activation:step=N", each with
// ":rank=R" (0 unless given) and a flip with ":bits=B" and ":place=P" (any number, 0 unless given) after it. WHAT is
// gradient, activation, weight, moment, basis, message or checkpoint; of the first two ":micro=M" as well. An empty
// text plans nothing. Throws Error(usage) that says what was got and what is allowed.
std::optional<PlannedFault> parse_fault(std::string_view text);

}  // namespace sestina

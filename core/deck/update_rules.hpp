// Keys of [optimizer] that every kind has: what becomes of the update that a kind makes before it moves the weight, and
// what follows a schedule of its own. The formulas stand in kernels/optimizer/shaped_move.hpp. No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace sestina {

class Deck;
struct ScheduleOptions;

// Notation: W is a weight matrix, U the update of its kind, lr U the movement, all norms are Frobenius norms.
struct UpdateRules {
  bool hyperball = false;        // U has the norm of W at the start, R, and so has W after the movement; no decay
  bool relative_update = false;  // U has the norm of W
  double update_floor = 0;       // least ||U|| / ||W||; 0: any
  double row_floor = 0;          // the same for each row
  double max_update_rms = 0;     // largest root mean square of U; 0: any
  double radial_brake = 1;       // share that is kept of the part of U along W where it makes W longer
  bool radius_pin = false;       // ||W|| becomes what the radial part of the movement alone would make of it
  bool cautious = false;         // only weights that U and decay pull the same way decay

  // Returns whether the movement must be known by itself, as a whole matrix: the fused passes of the kinds do not do.
  bool shape() const {
    return hyperball || relative_update || update_floor > 0 || row_floor > 0 || max_update_rms > 0 ||
           radial_brake != 1 || radius_pin || cautious;
  }
  // Returns whether some rule needs norms of whole matrices.
  bool need_norms() const {
    UpdateRules others = *this;
    others.cautious = false;
    return others.shape();
  }
};

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
// has_momentum: the kind has a key `momentum`, which the schedule replaces.
UpdateSchedule read_update_schedule(Deck&, const ScheduleOptions&, bool has_momentum);

}  // namespace sestina

// Learning-rate shape: a factor in [0, 1] of each group's own peak. Steps count from 1: `step` is the update being
// made. Linear warm-up step / warmup_steps; then cosine or linear down to min_lr_ratio at `steps`, or wsd: flat, then
// linear down over the last decay_steps, or power: the same with that power of the line, or constant. Beyond `steps` it
// stays at its last value. No Kokkos.
#pragma once
#include <string>

#include "core/deck/options.hpp"

namespace sestina {

class Schedule {
 public:
  explicit Schedule(const ScheduleOptions&);
  double factor(std::int64_t step) const;

 private:
  ScheduleOptions options_;
};

// Returns a warning where warm-up or decay is longer than the run and the schedule has no length of its own
// (schedule.steps): what the run makes of it, and what to change; "" where they fit.
std::string short_run_warning(const RunOptions&, const ScheduleOptions&);

}  // namespace sestina

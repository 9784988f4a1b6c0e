#include "core/optimizer/learning_rate_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sestina {

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {}

double Schedule::factor(std::int64_t step) const {
  using Kind = ScheduleOptions::Kind;
  const auto& o = options_;
  if (o.kind != Kind::constant && o.steps > 0) step = std::min(step, o.steps);
  if (step <= o.warmup_steps)
    return o.warmup_steps == 0 ? 1.0 : static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  const std::int64_t begin = o.falls_late() ? std::max(o.steps - o.decay_steps, o.warmup_steps) : o.warmup_steps;
  if (o.kind == Kind::constant || step <= begin || o.steps <= begin) return 1.0;
  const double done = static_cast<double>(step - begin) / static_cast<double>(o.steps - begin);  // (0, 1]
  const double shape = o.kind == Kind::cosine  ? 0.5 * (1.0 + std::cos(std::numbers::pi * done))
                       : o.kind == Kind::power ? std::pow(1.0 - done, o.power)
                                               : 1.0 - done;
  return o.min_lr_ratio + (1.0 - o.min_lr_ratio) * shape;
}

std::string short_run_warning(const RunOptions& run, const ScheduleOptions& schedule) {
  if (run.steps <= 0 || schedule.steps != run.steps) return "";
  constexpr const char* help =
      "for a short trial of a longer run, schedule.steps=N keeps the rates of a run of N steps";
  if (schedule.warmup_steps > run.steps)
    return fmt::format(
        "the run of run.steps = {} ends inside its warm-up of schedule.warmup_steps = {}, at {:.3g} of the learning "
        "rate; {}, schedule.warmup_steps=0 leaves the warm-up out",
        run.steps, schedule.warmup_steps, static_cast<double>(run.steps) / static_cast<double>(schedule.warmup_steps),
        help);
  if (schedule.falls_late() && schedule.decay_steps > run.steps - schedule.warmup_steps)
    return fmt::format(
        "schedule.warmup_steps = {} and schedule.decay_steps = {} are longer than the run of run.steps = {}; {}, "
        "schedule.decay_steps=0 decays over a fifth of it",
        schedule.warmup_steps, schedule.decay_steps, run.steps, help);
  return "";
}

}  // namespace sestina

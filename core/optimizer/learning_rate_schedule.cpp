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
  const std::int64_t begin = o.kind == Kind::wsd ? std::max(o.steps - o.decay_steps, o.warmup_steps) : o.warmup_steps;
  if (o.kind == Kind::constant || step <= begin || o.steps <= begin) return 1.0;
  const double done = static_cast<double>(step - begin) / static_cast<double>(o.steps - begin);  // (0, 1]
  const double shape = o.kind == Kind::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * done)) : 1.0 - done;
  return o.min_lr_ratio + (1.0 - o.min_lr_ratio) * shape;
}

}  // namespace sestina

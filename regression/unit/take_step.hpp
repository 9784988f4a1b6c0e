// A step of the executor without a trainer: nothing is refused.
#pragma once
#include "parallel/step/executor.hpp"

namespace sestina {

// At the peak rates. Returns the steps that are finished now.
inline std::span<const FinishedStep> take_step(Executor& executor, std::int64_t t, Batches& batches) {
  if (executor.backward(t, 1, batches).sums) executor.update();
  return executor.exchange();
}

}  // namespace sestina

// What the benchmark verbs share.
#pragma once
#include <vector>

#include "app/command/verbs.hpp"
#include "core/deck/options.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

// Deck and options of a benchmark that runs as one process; Error(unavailable) when the model does not fit into memory.
Options bench_options(const BenchArguments&);
// Of training steps on all ranks, which agree on them; in the same way.
struct StepOptions {
  Options options;
  Plan plan;
};
StepOptions bench_step_options(const BenchArguments&, Runtime&);

}  // namespace sestina

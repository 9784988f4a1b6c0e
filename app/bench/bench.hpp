// The benches, one function and one file (verb_bench_<name>.cpp) each, and the options that they share.
#pragma once
#include <vector>

#include "app/command/verbs.hpp"
#include "core/deck/options.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

// Returns the options of a benchmark that runs as one process; throws Error(unavailable) when the model does not fit
// into memory.
Options bench_options(const BenchArguments&);
// The options and plan of training steps on all ranks, which agree on them; the same errors are thrown.
struct StepOptions {
  Options options;
  Plan plan;
};
StepOptions bench_step_options(const BenchArguments&, Runtime&);

int run_bench_step(const BenchArguments&, const RankSource&);
int run_bench_kernels(const BenchArguments&);
int run_bench_optimizer(const BenchOptimizerArguments&);
int run_bench_io(const BenchIoArguments&);

}  // namespace sestina

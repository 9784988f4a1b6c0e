#include "app/bench/program.hpp"

#include "app/bench/bench.hpp"
#include "app/start/all_ranks.hpp"
#include "app/start/program_frame.hpp"
#include "app/start/rank_run.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// The benches by their arguments. All but `step` run as one process.
struct Benches {
  const RankSource& ranks;

  int operator()(const BenchStepArguments& a) const { return run_bench_step(a, ranks); }
  int operator()(const BenchKernelsArguments& a) const {
    require_one_task("bench kernels");
    return run_bench_kernels(a);
  }
  int operator()(const BenchOptimizerArguments& a) const {
    require_one_task("bench optimizer");
    return run_bench_optimizer(a);
  }
  int operator()(const BenchIoArguments& a) const {
    require_one_task("bench io");
    return run_bench_io(a);
  }
  int operator()(const auto&) const { fail(ExitCode::internal, "no bench"); }
};

}  // namespace

int run_bench(int argc, char** argv) { return run_bench(argc, argv, all_ranks()); }

int run_bench(int argc, char** argv, const RankSource& ranks) {
  return run_call_of("bench", {argc, argv, ranks},
                     [&](const Command& command) { return std::visit(Benches{ranks}, command); });
}

}  // namespace sestina

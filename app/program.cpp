// The program as a function: command line -> verb -> exit code.
#include "app/program.hpp"

#include <cstdio>
#include <exception>
#include <string_view>

#include "app/command/command_line.hpp"
#include "app/start/all_ranks.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/stop.hpp"
#include "core/optimizer/register_optimizers.hpp"
#include "kernels/base/error.hpp"

namespace {

using namespace sestina;

// Runs a verb that runs as one process.
template <class Verb, class Arguments>
int alone(const char* name, Verb verb, const Arguments& arguments) {
  require_one_task(name);
  return verb(arguments);
}

int run(const ShowText& show) { return std::fputs(show.text.c_str(), stdout) < 0; }
int run(const InitArguments& a) { return alone("init", run_init, a); }
int run(const TrainArguments& a, const RankSource& ranks) { return run_train(a, ranks); }
int run(const PlanArguments& a) { return run_plan(a); }
int run(const EvalArguments& a, const RankSource& ranks) { return run_eval(a, ranks); }
int run(const GenerateArguments& a) { return alone("generate", run_generate, a); }
int run(const HessianArguments& a) { return alone("diagnose hessian", run_diagnose_hessian, a); }
int run(const DataTokenizeArguments& a) { return alone("data tokenize", run_data_tokenize, a); }
int run(const DataTrainTokenizerArguments& a) { return alone("data train-tokenizer", run_data_train_tokenizer, a); }
int run(const DataInspectArguments& a) { return run_data_inspect(a); }
int run(const DataVerifyArguments& a) { return run_data_verify(a); }
int run(const CheckpointListArguments& a) { return run_checkpoint_list(a); }
int run(const CheckpointVerifyArguments& a) { return run_checkpoint_verify(a); }
int run(const CheckpointExportArguments& a) { return alone("checkpoint export", run_checkpoint_export, a); }
int run(const CheckpointConvertArguments& a) { return alone("checkpoint convert", run_checkpoint_convert, a); }
int run(const CheckpointImportArguments& a) { return alone("checkpoint import", run_checkpoint_import, a); }
int run(const ReportArguments& a) { return alone("report", run_report, a); }
int run(const SweepArguments& a) { return alone("sweep", run_sweep, a); }
int run(const BenchStepArguments& a, const RankSource& ranks) { return run_bench_step(a, ranks); }
int run(const BenchKernelsArguments& a) { return alone("bench kernels", run_bench_kernels, a); }
int run(const BenchOptimizerArguments& a) { return alone("bench optimizer", run_bench_optimizer, a); }
int run(const BenchIoArguments& a) { return alone("bench io", run_bench_io, a); }
int run(const InfoArguments& a, const RankSource& ranks) { return run_info(a, ranks); }

// Runs a verb on the ranks that run it together.
template <class Arguments>
int run_verb(const Arguments& arguments, const RankSource& ranks) {
  if constexpr (requires { run(arguments, ranks); })
    return run(arguments, ranks);
  else
    return run(arguments);
}

int report(const char* message, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "sestina: error: %s\n", message);
  return static_cast<int>(code);
}

}  // namespace

int sestina::run_program(int argc, char** argv) { return run_program(argc, argv, all_ranks()); }

int sestina::run_program(int argc, char** argv, const RankSource& ranks) {
  try {
    // 0. A run answers signals from its first moment on: a stop must not look like a crash to a batch system.
    if (argc > 1 && std::string_view(argv[1]) == "train") catch_signals();
    register_optimizers();
    // 1. The command line; -h and -V are answered without starting anything.
    const Command command = parse_command_line(argc, argv);
    // 2. The verb: reads its deck, starts Kokkos if it computes, runs.
    const int code = std::visit([&](const auto& arguments) { return run_verb(arguments, ranks); }, command);
    // 3. The exit code, once all output is out.
    if (std::fflush(stdout) != 0) return report("standard output cannot be written", ExitCode::io_error);
    return code;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    return report(failure.message.c_str(), failure.code);
  }
}

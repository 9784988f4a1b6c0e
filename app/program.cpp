// The program as a function: command line -> verb -> exit code.
#include "app/program.hpp"

#include <string_view>

#include "app/start/all_ranks.hpp"
#include "app/start/program_frame.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/stop.hpp"
#include "kernels/base/error.hpp"

namespace {

using namespace sestina;

// Runs a verb that runs as one process.
template <class Verb, class Arguments>
int alone(const char* name, Verb verb, const Arguments& arguments) {
  require_one_task(name);
  return verb(arguments);
}

int run(const InitArguments& a) { return alone("init", run_init, a); }
int run(const TrainArguments& a, const Call& call) { return run_train(a, call.ranks); }
int run(const PlanArguments& a) { return run_plan(a); }
int run(const EvalArguments& a, const Call& call) { return run_eval(a, call.ranks); }
int run(const GenerateArguments& a, const Call& call) { return run_generate(a, call.ranks); }
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
int run(const InfoArguments& a, const Call& call) { return run_info(a, call.ranks); }
int run(const CheckArguments& a, const Call& call) { return run_check(a, call.ranks); }
// These are programs of their own (app/bench, app/experiments).
int run(const BenchArguments&, const Call& call) { become_program_of("bench", call); }
int run(const HessianArguments&, const Call& call) { become_program_of("diagnose", call); }
// The answers to -h and -V are given before (program_frame.cpp).
int run(const ShowText&) { return 0; }

// Runs a verb on the ranks that run it together.
template <class Arguments>
int run_verb(const Arguments& arguments, const Call& call) {
  if constexpr (requires { run(arguments, call); })
    return run(arguments, call);
  else
    return run(arguments);
}

}  // namespace

int sestina::run_program(int argc, char** argv) { return run_program(argc, argv, all_ranks()); }

int sestina::run_program(int argc, char** argv, const RankSource& ranks) {
  // A run answers signals from its first moment on: a stop must not look like a crash to a batch system.
  if (argc > 1 && std::string_view(argv[1]) == "train") catch_signals();
  const Call call{argc, argv, ranks};
  return run_call(call, [&](const Command& command) {
    return std::visit([&](const auto& arguments) { return run_verb(arguments, call); }, command);
  });
}

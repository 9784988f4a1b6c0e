// The command line as a verb with its arguments. Nothing is started and no file is read here. No Kokkos.
#pragma once
#include <string>
#include <variant>

#include "app/command/verbs.hpp"

namespace sestina {

struct ShowText {
  std::string text;  // the answer to -h and -V
};
struct BenchStepArguments : BenchArguments {};
struct BenchKernelsArguments : BenchArguments {};

using Command = std::variant<ShowText, InitArguments, TrainArguments, PlanArguments, EvalArguments, GenerateArguments,
                             HessianArguments, DataTokenizeArguments, DataTrainTokenizerArguments, DataInspectArguments,
                             DataVerifyArguments, CheckpointListArguments, CheckpointVerifyArguments,
                             CheckpointExportArguments, CheckpointConvertArguments, CheckpointImportArguments,
                             ReportArguments, SweepArguments, BenchStepArguments, BenchKernelsArguments,
                             BenchOptimizerArguments, BenchIoArguments, InfoArguments, CheckArguments>;

// Parses the command line; throws Error(usage) with a suggestion. `sestina manual bash|man` (not listed) answers with
// the completion for bash and the manual page, made from the same tables as -h.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace sestina

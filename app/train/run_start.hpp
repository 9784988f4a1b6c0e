// The start of a run: its directory, the checkpoint that it starts from, and what it says of itself in the log and in
// metrics.jsonl. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "app/start/memory_check.hpp"
#include "core/deck/options.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/report/metrics.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// The command line of `sestina train` says in which directory a run lives and from which checkpoint it starts.

// Returns -d, else run.dir, else runs/<name>; the checkpoint's deck is not read, because this helps to find it.
// Error(usage) when nothing says it.
std::string find_run_dir(const TrainArguments&);

// True where -r names a checkpoint or another run directory, instead of leaving the choice to the program.
bool names_checkpoint(const TrainArguments&);

// Returns the checkpoint to start from, "" = a fresh start. warnings: about checkpoints that are passed over; poll:
// called while files are read. Error(input_missing, bad_data).
std::string find_start_checkpoint(const TrainArguments&, const std::string& run_dir, std::vector<std::string>& warnings,
                                  const Poll& poll);

// Returns the newest checkpoint that is complete by its manifest and sizes, as far as that can be told at once; ""
// none.
std::string glance_at_checkpoint(const TrainArguments&);

// Returns false for an imported checkpoint, which holds weights alone.
bool has_optimizer_state(const CheckpointReader&);

// The facts that a start of a run says of itself, in the log and as the first line of metrics.jsonl.
struct RunStart {
  std::int64_t step = 0;             // the step that it goes on from
  std::string deck;                  // the resolved deck, TOML
  std::string command_line, device;  // device: that of the first rank
  int threads = 1;                   // threads of each rank
  std::string data;                  // SampleSet::description(): a line for each source
  std::string precision = "fp32";    // that of products; bf16 on a host with how (instruction_set.hpp)
};
// Says how products are computed, for the start line; on_host: by a host's own units.
std::string precision_line(TrainOptions::Precision, bool on_host);
// Returns the first line of metrics.jsonl. Collective over the ranks.
RunLine run_line(const RunStart&, Runtime&);

// Returns lines with version, model, optimizer, layout, device with threads, planned against available memory, and
// data. available: bytes that this rank may take.
std::vector<std::string> start_lines(const Options&, const RunStart&, const PlannedRun&, std::uint64_t available);

// Returns a line on the learning rate of the next update where run.steps was changed and the schedule's horizon
// followed it, with both numbers and the key that keeps it; "" when nothing jumps. stored: options of the checkpoint;
// step: its updates.
std::string learning_rate_jump(const Options& stored, const Options& now, std::int64_t step);

}  // namespace sestina

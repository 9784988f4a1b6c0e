// The start of a run: where it lives, which checkpoint it starts from, and what it says of itself in the log and in
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

// Where a run lives and which checkpoint it starts from, by the command line of `sestina train`.

// -d, else run.dir, else runs/<name>; read without the checkpoint's deck, which it helps to find. Error(usage) when
// nothing says it.
std::string find_run_dir(const TrainArguments&);

// -r names a checkpoint, or another run directory, instead of leaving the choice to us.
bool names_checkpoint(const TrainArguments&);

// "" = a fresh start. warnings: about checkpoints that are passed over; poll: called while files are read.
// Error(input_missing, bad_data).
std::string find_start_checkpoint(const TrainArguments&, const std::string& run_dir, std::vector<std::string>& warnings,
                                  const Poll& poll);

// The newest checkpoint that is complete by its manifest and sizes, as far as that can be told at once; "" none.
std::string glance_at_checkpoint(const TrainArguments&);

// False for an imported one, which holds weights alone.
bool has_optimizer_state(const CheckpointReader&);

// What a start of a run says of itself: in the log, and as the first line of metrics.jsonl; and what a resume changes
// unasked.
struct RunStart {
  std::int64_t step = 0;             // it goes on from
  std::string deck;                  // resolved, TOML
  std::string command_line, device;  // device: of the first rank
  int threads = 1;                   // of each rank
  std::string data;                  // SampleSet::description(): a line for each source
  std::string precision = "fp32";    // of products; of bf16 on a host with the way (instruction_set.hpp)
};
// Collective over the ranks.
RunLine run_line(const RunStart&, Runtime&);

// Version, model, optimizer, layout, device with threads, planned against available memory, and data. available: bytes
// that this rank may take.
std::vector<std::string> start_lines(const Options&, const RunStart&, const PlannedRun&, std::uint64_t available);

// The learning rate of the next update where run.steps was changed and the schedule's horizon followed it: a line with
// both numbers and the key that keeps it; "" when nothing jumps. stored: options of the checkpoint; step: its updates.
std::string learning_rate_jump(const Options& stored, const Options& now, std::int64_t step);

}  // namespace sestina

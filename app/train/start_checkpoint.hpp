// Where a run lives and which checkpoint it starts from, by the command line of `sestina train`. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

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

}  // namespace sestina

// Rewriting a checkpoint for another number of shards. No Kokkos.
#pragma once
#include <string>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_save.hpp"

namespace sestina {

// Writes all that is read as <run_dir>/checkpoints/<step> in so many shards, each tensor cut into even ranges of rows
// (one with fewer rows than shards lies in the first ones, row by row). One range of one tensor is in memory at a time.
// Error(cannot_create) if the step is already there.
Saved convert_checkpoint(const CheckpointReader&, const std::string& run_dir, int shards);

}  // namespace sestina

// The checkpoints of a run directory in the order in which they were saved. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

struct ListedCheckpoint {
  CheckpointInfo info;
  std::uint64_t serial = 0;  // see Manifest::serial
};
// Newest save first. After a rewind that is not the highest step: the steps left behind are older saves.
std::vector<ListedCheckpoint> list_with_serials(const std::string& run_dir);

}  // namespace sestina

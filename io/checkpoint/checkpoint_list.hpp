// The checkpoints of a run directory in the order in which they were saved. No Kokkos.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

struct ListedCheckpoint {
  CheckpointInfo info;
  std::uint64_t serial = 0;  // see Manifest::serial
};
// Returns the newest save first. After a rewind that is not the highest step: steps from before the rewind are older
// saves.
std::vector<ListedCheckpoint> list_with_serials(const std::string& run_dir);

// Decides which checkpoints of a run directory stay when a new one has been saved.
class Retention {
 public:
  // Names the checkpoint that the run goes on from: it was verified, and is older than those saved since, but newer
  // than all others, which the run no longer continues.
  void resumed_from(const std::string& checkpoint);
  void saved(const std::string& checkpoint);  // notes a checkpoint that this run has just saved

  // Keeps the `keep` newest checkpoints that are complete and undamaged, and removes older ones, but for those of steps
  // that keep_every divides. 0 keeps all. A checkpoint that this object does not know is verified once, when it would
  // count: one whose bytes have changed does not count, and the log says so. A delete that fails costs disk, not the
  // run.
  void prune(const std::string& run_dir, int keep, std::int64_t keep_every);

 private:
  static std::string name_of(const std::string& checkpoint);  // the name of its folder
  bool is_good(const std::string& checkpoint);

  // These are by name of the folder.
  std::map<std::string, bool> good_;
  std::set<std::string> saved_;
  std::string base_;
};

}  // namespace sestina

// Why and when to stop: signals, wall time, STOP and CHECKPOINT files, second Ctrl-C. Handlers set flags only; poll()
// is called wherever time passes (start-up, micro-steps, evaluation, flushing). No Kokkos.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/options.hpp"

namespace sestina {

class Stop {
 public:
  // Installs handlers for the deck's stop signals, INT and HUP. walltime counts from process start; when 0,
  // SLURM_JOB_END_TIME is used where present.
  // Of several ranks only the first one looks for the STOP and CHECKPOINT files.
  Stop(const RunOptions&, const std::string& run_dir, bool first = true);
  ~Stop();
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;
  // What to do now. reserve: seconds to keep for a save and a step. Once stop, always stop; save is told once.
  // Error(io_error) when a STOP or CHECKPOINT file cannot be removed.
  enum class Wish { go_on, save, stop };
  Wish poll(double reserve);
  std::string reason() const;   // "signal TERM", "wall time", "STOP file"
  double seconds_left() const;  // infinity when there is no limit

 private:
  std::filesystem::path stop_file_, checkpoint_file_;
  std::string reason_;
  std::vector<int> signals_;
  double deadline_ = 0, next_look_ = 0;  // seconds since boot
  bool first_;
};
// Blocks all signals in the calling thread: helper threads call it first.
void block_signals();

}  // namespace sestina

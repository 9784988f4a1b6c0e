// The reasons and times to stop a run: signals, wall time, STOP and CHECKPOINT files, second Ctrl-C. Handlers set flags
// only; poll() is called wherever time passes (start-up, micro-steps, evaluation, flushing). No Kokkos.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/deck/options.hpp"

namespace sestina {

// Installs handlers for every signal that a deck may choose, INT and HUP: signals that come from now on wait for a
// Stop. `train` does this first.
void catch_signals();
// Restores default handling, also for signals that have come meanwhile: for the part of the verb that is no run.
void release_signals();

class Stop {
 public:
  // Makes the Stop of a run that starts: all of those signals stop it. walltime counts from process start; when 0,
  // SLURM_JOB_END_TIME is used where present.
  explicit Stop(double walltime);
  // Makes the Stop of a run whose deck is read.
  Stop(const RunOptions& run, const std::string& run_dir, bool first = true) : Stop(run.walltime) {
    set_up(run, run_dir, first);
  }
  // Catches signals no more: those that come now are too late to change the exit code, but for INT, which ends the
  // process at once.
  ~Stop();
  // Takes the options of the deck: its stop signals count, others have their default handling. Of several ranks only
  // the first one looks for the STOP and CHECKPOINT files.
  void set_up(const RunOptions&, const std::string& run_dir, bool first);
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;
  // The answer of poll(). reserve: seconds to keep for a save and a step. After one `stop` the answer is always `stop`;
  // `save` is told once. Error(io_error) when a STOP or CHECKPOINT file cannot be removed.
  enum class Vote { go_on, save, stop };
  bool told_to_stop(double reserve = 0);  // told by a signal or the wall time; a vote to save stays for poll()
  Vote poll(double reserve);
  std::string reason() const;   // "signal TERM", "wall time", "STOP file"
  double seconds_left() const;  // infinity when there is no limit

 private:
  std::filesystem::path stop_file_, checkpoint_file_;
  std::string reason_;
  std::vector<int> signals_;             // signals that stop the run
  double deadline_ = 0, next_look_ = 0;  // seconds since boot
  bool looks_for_files_ = false;
};

}  // namespace sestina

// The start of a run, phase by phase on all ranks together: an error, or a vote to stop, at one rank ends all of them
// with one code and one message. No Kokkos.
#pragma once
#include <functional>

#include "app/start/stop.hpp"
#include "io/store/digest.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

class StartUp {
 public:
  // resumable: a complete checkpoint is there to go on from, so that a stop ends with stopped_saved.
  StartUp(Runtime&, Stop&, std::function<bool()> resumable);
  // Every rank runs every phase. `name` must outlive it.
  void phase(const char* name, const std::function<void()>& f);
  // Returns a poll for long work inside a phase, which throws when the run is to stop.
  Poll poll() const;
  // Returns a poll for long work after the phases, after Runtime::together: throws Error(stopped_saved or
  // stopped_unsaved).
  Poll last_poll() const;

 private:
  [[noreturn]] void fail_stopped(const char* where) const;

  Runtime& runtime_;
  Stop& stop_;
  std::function<bool()> resumable_;
};

}  // namespace sestina

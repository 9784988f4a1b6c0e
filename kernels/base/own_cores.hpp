// The cores of the process, and threads that are started on cores of their own. A thread inherits the mask of the one
// that starts it, and OpenMP binds the main thread to one core (OMP_PROC_BIND) when its library is loaded, before
// anybody can ask: helper threads would all share that core with it. No Kokkos.
#pragma once
#include <sched.h>

#include <vector>

namespace sestina {

// Those that the process was given, whichever thread asks: all places of OpenMP, which it makes of them before it binds
// a thread, and the mask of the main thread.
std::vector<int> process_cores();

// The calling thread may run on these cores alone while one of these lives, and every thread that is started meanwhile
// for good.
class OnCores {
 public:
  explicit OnCores(const std::vector<int>& cores);
  ~OnCores();
  OnCores(const OnCores&) = delete;
  OnCores& operator=(const OnCores&) = delete;
  int error() const { return error_; }  // errno where none of the cores is to be had, and nothing has changed; else 0

 private:
  cpu_set_t before_;
  int error_ = 0;
};

}  // namespace sestina

// Runs commands as children of this process, some at a time; signals that stop a run are handed on to them. No Kokkos.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace sestina {

struct ChildRun {
  std::vector<std::string> command;  // program and arguments; found on the PATH when it has no "/"
  std::string dir;                   // run directory; its console.txt takes what the child prints
  bool launched = false;             // by mpirun, which hands USR1 on to its ranks and ends them on TERM
};

struct ChildEnds {
  std::vector<int> codes;    // exit code of each run, 128 + signal where one ended it, not_started
  bool stopped = false;      // a signal stopped the runs
  bool interrupted = false;  // and a second Ctrl-C ended them
  static constexpr int not_started = -1;
};

// Starts each run once its directory is free (a run of a process that was killed may still save there), at most
// `at_once` at a time, and waits for all. ended(i, code) is called after each. Where it returns false, and after TERM,
// INT, HUP, USR1 or USR2, no further run is started; after a signal those that run are told to stop with a checkpoint.
// Should this process be killed, its children get TERM.
ChildEnds run_children(const std::vector<ChildRun>&, int at_once, const std::function<bool(std::size_t, int)>& ended);

// Returns the last line of a run's console.txt that tells an error; "" none.
std::string console_error(const std::string& dir);

}  // namespace sestina

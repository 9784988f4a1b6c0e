// What every program of this project is around its verbs: command line -> command -> exit code; and how `sestina` hands
// a verb to the program that it is. No Kokkos.
#pragma once
#include <functional>

#include "app/command/command_line.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// What a program was called with, and the ranks that it may run on.
struct Call {
  int argc = 0;
  char** argv = nullptr;
  const RankSource& ranks;
};

// Runs what the command line says and returns the exit code. Every failure is one message on stderr.
using RunCommand = std::function<int(const Command&)>;
int run_call(const Call&, const RunCommand&);

// Does the same for a program that is one verb: `sestina-bench step` is `sestina bench step`.
int run_call_of(const char* verb, const Call&, const RunCommand&);

// Replaces this process, before MPI, Kokkos or a thread of ours starts, by the program of the verb, with the words that
// follow it: <this program>-<verb> in the same folder (links to this program are followed), sestina-bench for sestina.
// Error(unavailable) where that cannot be started, or where ranks were given that would be lost with this process.
[[noreturn]] void become_program_of(const char* verb, const Call&);

}  // namespace sestina

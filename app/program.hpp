// The whole program as a function, for a main that adds something of its own first
// (core/optimizer/base/register_kind.hpp). No Kokkos.
#pragma once
#include "parallel/comm/runtime.hpp"

namespace sestina {

// Runs the verb that the command line names and returns the exit code. Every failure is one message on stderr. It
// starts and ends MPI and Kokkos itself, and may be called once in a process.
int run_program(int argc, char** argv);

// Does the same on the ranks that the program gives (parallel/comm/ranks_of_mpi.hpp), each of which calls it; an MPI
// that the program has started is left running. A call of set_exit_handler (kernels/base/exit_handler.hpp) before this
// decides what happens where one rank's failure would end the others.
int run_program(int argc, char** argv, const RankSource& ranks);

}  // namespace sestina

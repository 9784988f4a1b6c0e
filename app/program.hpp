// The whole program as a function, for a main that adds something of its own first
// (core/optimizer/kinds/register_kind.hpp). No Kokkos.
#pragma once

namespace sestina {

// Runs the verb that the command line names and returns the exit code. Every failure is one message on stderr. Starts
// and ends MPI and Kokkos itself; once in a process.
int run_program(int argc, char** argv);

}  // namespace sestina

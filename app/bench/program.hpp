// `sestina bench` as a function, for a main that adds something of its own first, as app/program.hpp is for the other
// verbs. No Kokkos.
#pragma once
#include "parallel/comm/runtime.hpp"

namespace sestina {

// Runs the bench that the words after the program's name say ("step -i DECK") and returns the exit code. Every failure
// is one message on stderr. It starts and ends MPI and Kokkos itself, and may be called once in a process.
int run_bench(int argc, char** argv);

// Does the same on the ranks that the program gives (parallel/comm/ranks_of_mpi.hpp), each of which calls it.
int run_bench(int argc, char** argv, const RankSource& ranks);

}  // namespace sestina

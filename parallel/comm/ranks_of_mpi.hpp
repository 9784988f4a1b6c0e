// Makes a communicator of MPI the ranks of a run, for programs that know MPI themselves: Runtime and run_program take
// it. No Kokkos.
#pragma once
#include <mpi.h>

#include "parallel/comm/runtime.hpp"

namespace sestina {

// MPI has been started and outlives the run, as does the communicator. Sestina works on a duplicate of it.
inline RankSource ranks_of(MPI_Comm comm) {
  return {[comm] { return static_cast<long>(MPI_Comm_c2f(comm)); }, false};
}

}  // namespace sestina

// Finds which ranks of a node run on the same cores. Launchers bind ranks to cores of their own, to the same ones by
// mistake, or not at all. No Kokkos.
#pragma once
#include "parallel/comm/runtime.hpp"

namespace sestina {

// Returns the number of ranks of this node, this one included, that may run on any of the cores that this one may run
// on. Collective.
int core_sharers(Runtime&);

// Warns once, on the first rank, where ranks that share cores have more threads than these cores. threads: those of
// this rank. Collective.
void warn_of_shared_cores(Runtime&, int threads);

}  // namespace sestina

// The cores of the process, and threads that are started on cores of their own. A thread inherits the mask of the one
// that starts it, and OpenMP binds the main thread to one core (OMP_PROC_BIND) when its library is loaded, before
// anybody can ask: helper threads would all share that core with it. No Kokkos.
#pragma once
#include <vector>

namespace sestina {

// Those that the process was given, whichever thread asks: all places of OpenMP, which it makes of them before it binds
// a thread, and the mask of the main thread.
std::vector<int> process_cores();

// Binds the calling thread to these cores, and what it starts later. Returns 0, or errno where it may run on none of
// them, and then nothing has changed.
int bind_this_thread(const std::vector<int>& cores);

}  // namespace sestina

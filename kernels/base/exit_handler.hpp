// The one way in which Sestina ends a process, or all ranks of a run, without returning to its caller: a second
// interrupt, a start of MPI that never ends, an error of one rank that would leave the others waiting. A program that
// hosts Sestina sets a handler and decides itself. No Kokkos.
#pragma once

namespace sestina {

// Called with the exit code (kernels/base/error.hpp). It may be called from a signal handler and from any thread, so it
// does only what a signal handler may do. Where it returns, Sestina goes on: the interrupt is forgotten, the watch over
// the start has ended, the rank returns its exit code while the others may wait for it.
using ExitHandler = void (*)(int code);

// Sets the handler of the whole process from now on and returns the one before. With null, the process ends by _exit,
// or by MPI_Abort where other ranks are to end too.
ExitHandler set_exit_handler(ExitHandler);

// Calls the handler that is set; else `otherwise`; else _exit. May be called wherever a handler may.
void leave_process(int code, ExitHandler otherwise = nullptr);

}  // namespace sestina

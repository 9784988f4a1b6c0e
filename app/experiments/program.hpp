// `sestina diagnose` as a function, as app/program.hpp is for the other verbs. No Kokkos.
#pragma once

namespace sestina {

// Runs the experiment that the words after the program's name say ("hessian -r CHECKPOINT") and returns the exit code.
// Every failure is one message on stderr. It starts and ends Kokkos itself, and may be called once in a process.
int run_diagnose(int argc, char** argv);

}  // namespace sestina

// What an exception means to whoever runs the program: the exit code and message of the one error path. No Kokkos.
#pragma once
#include <exception>
#include <string>

#include "kernels/base/error.hpp"

namespace sestina {

struct Failure {
  ExitCode code = ExitCode::internal;
  std::string message;
};

// Errors as they are. Memory or a thread that the system refuses is `unavailable`: a limit was met, the message names
// those of this process, nothing is wrong inside. All else is internal.
Failure failure_of(const std::exception&) noexcept;

}  // namespace sestina

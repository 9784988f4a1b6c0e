// Errors of CUDA's driver, for sources of CUDA builds alone. No Kokkos.
#pragma once
#include <cuda.h>

#include "kernels/base/error.hpp"

namespace sestina {

// Throws Error(unavailable) with the driver's own words unless the call succeeded.
inline void check_driver(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(error, &text);
  fail(ExitCode::unavailable, "CUDA: {}: {}", what, text != nullptr ? text : "unknown error");
}

}  // namespace sestina

// Where a space queues its work.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// A CUDA stream; null: the space has no queue, and work is done when a call returns.
template <class Exec>
void* queue_of(const Exec& exec) {
  if constexpr (requires { exec.cuda_stream(); })
    return exec.cuda_stream();
  else
    return nullptr;
}

}  // namespace sestina

// The ranks of the test program.
#pragma once
#include <memory>

#include "kernels/blas/exec.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

Runtime*& test_runtime();
inline Communicator& world() { return test_runtime()->world(); }

// All ranks as a group for memory of a space.
template <class Exec>
std::unique_ptr<Communicator> tensor_ranks() {
  std::unique_ptr<Communicator> all = world().split(0, world().rank());
  return is_host<Exec> ? std::move(all) : on_device(std::move(all));
}

}  // namespace sestina

// The ranks of the test program.
#pragma once
#include "parallel/comm/runtime.hpp"

namespace sestina {

Runtime*& test_runtime();
inline Communicator& world() { return test_runtime()->world(); }

}  // namespace sestina

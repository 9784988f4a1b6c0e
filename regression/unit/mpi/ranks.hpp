// The ranks of the test program.
#pragma once
#include "parallel/runtime.hpp"

namespace sestina {

Runtime*& test_runtime();
inline Communicator& world() { return test_runtime()->world(); }

}  // namespace sestina

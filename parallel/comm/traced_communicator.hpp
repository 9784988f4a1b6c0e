// A group of ranks whose operations are seen in a trace: exchanges each in a row of its own, from their start until
// they were seen complete, and what waits for others in one row of the group. No Kokkos.
#pragma once
#include <memory>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"

namespace sestina {

// The trace must outlive it. label: of the group's row. Groups that are split off are traced too.
std::unique_ptr<Communicator> traced(std::unique_ptr<Communicator>, Trace&, const char* label);

}  // namespace sestina

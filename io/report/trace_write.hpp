// trace.json: what all ranks recorded, as a Chrome trace (the "Trace Event Format": complete events "X" in
// microseconds, counters "C", a process for each rank, a thread for each row; blocks of state, of which many move at a
// time, are asynchronous events "b" and "e"). No Kokkos.
#pragma once
#include <string>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"

namespace sestina {

// Called by all ranks together; the first one writes. label: this rank's name. Error(cannot_create) or Error(io_error)
// on the first.
void write_trace(const std::string& path, const Trace&, Communicator& world, const std::string& label);

}  // namespace sestina

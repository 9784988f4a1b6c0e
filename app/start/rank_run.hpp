// A verb on several ranks: errors are reported once, and no rank is left behind.
#pragma once
#include <functional>

#include "parallel/comm/runtime.hpp"

namespace sestina {

// Runs the verb on this rank and returns its exit code. An error that all ranks have agreed on (Runtime::together) is
// reported by the first rank. Any other error on one of several ranks would leave the rest waiting: it is reported
// here, and the whole job is ended with its code.
int run_on_ranks(Runtime&, const std::function<int()>& verb);

// For verbs that run as one process: Error(unavailable) when a launcher started several, each of which would do it all.
void require_one_task(const char* verb);

}  // namespace sestina

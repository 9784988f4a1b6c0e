// A verb on several ranks: errors are reported once, and no rank is left waiting.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/start/kokkos_session.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// Runs the verb on this rank and returns its exit code. An error that all ranks have agreed on (Runtime::together) is
// reported by the first rank. Any other error on one of several ranks would leave the rest waiting: it is reported
// here, and the whole job is ended with its code.
int run_on_ranks(Runtime&, const std::function<int()>& verb);

// For verbs that run as one process: throws Error(unavailable) when a launcher started several, each of which would do
// all of it.
void require_one_task(const char* verb);

// For verbs whose results go to the standard output: sends warnings to stderr, from the first rank alone, because they
// are the same on all.
void warn_on_stderr(const Runtime&);

// Starts Kokkos on every rank, with its share of the cores less those of `workers` refresh workers; warns once where
// there are too few. phase: a function that does more than Runtime::phase, which it is else. Collective.
using RunPhase = std::function<void(const char* name, const std::function<void()>&)>;
std::unique_ptr<KokkosSession> start_kokkos(Runtime&, int threads, std::vector<std::string> flags, int workers,
                                            const RunPhase& phase);
std::unique_ptr<KokkosSession> start_kokkos(Runtime&, int threads, std::vector<std::string> flags, int workers);

}  // namespace sestina

// Keeps Kokkos running to the end of the scope. Verbs start it after their deck is validated, never before.
#pragma once
#include <string>
#include <vector>

namespace sestina {

class KokkosSession {
 public:
  // threads: run.threads; 0 = all cores that this process may use, or its share of them where `sharers` ranks may run
  // on them (core_share.hpp), less the cores of `workers` refresh workers. flags: --kokkos-* of the command line, which
  // have precedence. Error(unavailable) when Kokkos cannot start (no device or driver).
  KokkosSession(int threads, const std::vector<std::string>& flags, int sharers = 1, int workers = 0);
  ~KokkosSession();
  KokkosSession(const KokkosSession&) = delete;
  KokkosSession& operator=(const KokkosSession&) = delete;
};

// Returns the number of threads that a KokkosSession takes. Error(bad_deck) when the command line or OMP_NUM_THREADS
// asks for more than max_threads; the deck has been asked before, and cores beyond that number are left alone.
int session_threads(int threads, const std::vector<std::string>& flags, int sharers = 1, int workers = 0);

// Returns the number of cores that this process may run on (its affinity mask), at least 1. It needs no Kokkos.
int available_cores();

}  // namespace sestina

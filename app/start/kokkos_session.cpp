#include "app/start/kokkos_session.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "app/start/memory_check.hpp"
#include "core/deck/options.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

// Returns the cores that a control group's CPU quota amounts to (cgroup v2), 0 = no quota.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0, microseconds = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  const auto parsed = std::from_chars(quota.data(), quota.data() + quota.size(), microseconds);
  return parsed.ec == std::errc() ? std::max(1, static_cast<int>(microseconds / period + 0.5)) : 0;
}

// Returns the number at the start of a text; 0 where there is none, or one below 1; the largest int where it is larger.
long long whole_number(const char* text) {
  long long value = 0;
  if (text == nullptr) return 0;
  const std::errc error = std::from_chars(text, text + std::strlen(text), value).ec;
  if (error == std::errc::result_out_of_range && *text != '-') return std::numeric_limits<long long>::max();
  return error == std::errc() ? std::max(value, 0LL) : 0;
}

constexpr std::string_view threads_flag = "--kokkos-num-threads";
bool sets_threads(const std::string& flag) { return flag.rfind(threads_flag, 0) == 0; }

// Returns the rank's share of the cores that this process may run on.
int own_cores(int sharers) { return std::max(1, available_cores() / sharers); }

}  // namespace

int available_cores() {
  const int allowed = static_cast<int>(process_cores().size()), quota = quota_cores();
  return std::max(1, quota > 0 ? std::min(allowed, quota) : allowed);
}

int session_threads(int threads, const std::vector<std::string>& flags, int sharers, int workers) {
  const auto limited = [](const std::string& who, long long number) {
    if (number > max_threads)
      fail(ExitCode::bad_deck, "{}: too many threads, got {}, allowed 1 to {}", who, number, max_threads);
    return static_cast<int>(number);
  };
  for (const std::string& flag : flags)
    if (sets_threads(flag) && flag.size() > threads_flag.size())
      return limited("--kokkos-num-threads", whole_number(flag.c_str() + threads_flag.size() + 1));
  if (threads > 0) return limited("run.threads", threads);
  if (const long long number = whole_number(std::getenv("OMP_NUM_THREADS")); number > 0)
    return limited("OMP_NUM_THREADS", number);
  const long long cores = whole_number(std::getenv("SLURM_CPUS_PER_TASK"));
  const long long mine = cores > 0 ? cores : own_cores(sharers);
  return static_cast<int>(std::clamp<long long>(mine - workers, 1, max_threads));
}

KokkosSession::KokkosSession(int threads, const std::vector<std::string>& flags, int sharers, int workers) {
  // Threads are bound only where the user says so: ranks of a node that were given no cores of their own would all be
  // bound to its first ones. Kokkos warns while the variable is unset.
  setenv("OMP_PROC_BIND", "false", 0);
  threads = session_threads(threads, flags, sharers, workers);
  if (const MemoryShare left = process_memory(threads); left.bytes == 1)
    fail(ExitCode::unavailable, "out of memory: {} has none left for {} threads and their libraries", left.name,
         threads);
  std::vector<std::string> words = {"sestina", fmt::format("--kokkos-num-threads={}", threads)};
  if (std::any_of(flags.begin(), flags.end(), sets_threads)) words.pop_back();
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  try {
    const SignalsBlocked in_worker_threads;  // the main thread alone takes signals, on a stack of its own (stop.cpp)
    Kokkos::initialize(argc, argv.data());
  } catch (const std::exception& error) {
    fail(ExitCode::unavailable, "Kokkos cannot start: {}", error.what());
  }
}

KokkosSession::~KokkosSession() { Kokkos::finalize(); }

}  // namespace sestina

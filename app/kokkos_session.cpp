#include "app/kokkos_session.hpp"

#include <sched.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kernels/error.hpp"

namespace sestina {
namespace {

// Cores that a control group's CPU quota amounts to (cgroup v2), 0 = no quota.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0, microseconds = 0;
  if (!(file >> quota >> period) || period <= 0) return 0;
  const auto parsed = std::from_chars(quota.data(), quota.data() + quota.size(), microseconds);
  return parsed.ec == std::errc() ? std::max(1, static_cast<int>(microseconds / period + 0.5)) : 0;
}

int positive_environment(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (!text || std::from_chars(text, text + std::strlen(text), value).ec != std::errc()) return 0;
  return std::max(value, 0);
}

// Cores of the affinity mask.
int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Its share of the cores that this process may run on.
int own_cores(int sharers) { return std::max(1, available_cores() / sharers); }

}  // namespace

int available_cores() {
  const int allowed = allowed_cores(), quota = quota_cores();
  return std::max(1, quota > 0 ? std::min(allowed, quota) : allowed);
}

KokkosSession::KokkosSession(int threads, const std::vector<std::string>& flags, int sharers) {
  // Threads are not bound: a bound main thread would hand its one core on to every helper thread it starts. Kokkos
  // warns while the variable is unset.
  setenv("OMP_PROC_BIND", "false", 0);
  for (const char* name : {"OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"})
    if (threads == 0) threads = positive_environment(name);
  if (threads == 0) threads = own_cores(sharers);
  std::vector<std::string> words = {"sestina", fmt::format("--kokkos-num-threads={}", threads)};
  const auto sets_threads = [](const std::string& flag) { return flag.rfind("--kokkos-num-threads", 0) == 0; };
  if (std::any_of(flags.begin(), flags.end(), sets_threads)) words.pop_back();
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  try {
    Kokkos::initialize(argc, argv.data());
  } catch (const std::exception& error) {
    fail(ExitCode::unavailable, "Kokkos cannot start: {}", error.what());
  }
}

KokkosSession::~KokkosSession() { Kokkos::finalize(); }

}  // namespace sestina

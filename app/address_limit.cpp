// Part of every program, not of its library: what is called before any library begins.
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/base/error.hpp"

namespace {

// OpenBLAS takes memory for its threads before main() begins, and waits for ever where it gets none (0.3.21: with all
// other libraries 260 MB for one thread, 390 MB for two).
constexpr unsigned long long mega = 1000000, libraries = 140, each_thread = 130;

// Counts threads as OpenBLAS does: its variables in its order, at most the cores of the process.
unsigned long long library_threads(char** environment) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const auto most = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  for (const std::string_view name : {"OPENBLAS_NUM_THREADS=", "GOTO_NUM_THREADS=", "OMP_NUM_THREADS="})
    for (char** word = environment; *word != nullptr; ++word)
      if (std::string_view(*word).starts_with(name))
        if (const int number = std::atoi(*word + name.size()); number > 0)
          return static_cast<unsigned long long>(std::min(number, most));
  return static_cast<unsigned long long>(most);
}

// The system calls this before any library begins. Limits that leave them enough memory are left to the program.
__attribute__((no_sanitize("address", "undefined"))) void require_addresses(int, char**, char** environment) {
  struct rlimit limit {};
  if (::syscall(SYS_prlimit64, 0, RLIMIT_AS, nullptr, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const unsigned long long threads = library_threads(environment);
  const unsigned long long least = libraries + threads * each_thread;
  if (limit.rlim_cur >= least * mega) return;
  char text[256];
  const int size = std::snprintf(text, sizeof text,
                                 "sestina: error: out of memory: ulimit -v allows this process %llu MB of addresses, "
                                 "libraries take %llu before it begins (OPENBLAS_NUM_THREADS=%llu)\n",
                                 static_cast<unsigned long long>(limit.rlim_cur) / mega, least, threads);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, static_cast<std::size_t>(size));
  ::_exit(static_cast<int>(sestina::ExitCode::unavailable));
}

__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**,
                                                                                char**) = require_addresses;

}  // namespace

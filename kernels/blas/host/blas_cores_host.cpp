#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

#include "kernels/base/threads.hpp"
#include "kernels/blas/host/blas_cores.hpp"

namespace sestina::host {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

bool has_fast_dot_products() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return true;
#endif
}

bool is_core_without_avx(std::string_view name) {
  constexpr std::string_view old[] = {"Katmai", "Coppermine", "Northwood",    "Prescott", "Banias", "Atom",
                                      "Core2",  "Penryn",     "Dunnington",   "Nehalem",  "Athlon", "Opteron",
                                      "Bobcat", "Barcelona",  "Opteron_SSE3", "Nano",     "Unknown"};
  return std::find(std::begin(old), std::end(old), name) != std::end(old);
}

void require_blas_cores(char** argv) {
  if (!has_avx2() || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  const auto core_name = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (core_name == nullptr || !is_core_without_avx(core_name())) return;
  ::setenv("OPENBLAS_CORETYPE", has_avx512() ? "SkylakeX" : "Haswell", 1);
  bind_this_thread(process_cores());  // else a program keeps the one core to which OpenMP has bound this thread
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error);  // its name is the process's
  ::execv(path.c_str(), argv);
}

}  // namespace sestina::host

#pragma once
// Which kernels OpenBLAS takes. Up to version 0.3.24 it takes an Intel processor that is newer than itself for one of
// 2004 (OpenMathLib/OpenBLAS#4267; 0.3.21 on Emerald Rapids: "Prescott"), whose kernels are slow and, in fp32, read
// what products in fp64 left in its buffers, so that decompositions now and then end without a result.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

namespace sestina::host {

// True for the kernels of processors without AVX, by the name that OpenBLAS gives them.
inline bool is_core_without_avx(std::string_view name) {
  constexpr std::string_view old[] = {"Katmai", "Coppermine", "Northwood",    "Prescott", "Banias", "Atom",
                                      "Core2",  "Penryn",     "Dunnington",   "Nehalem",  "Athlon", "Opteron",
                                      "Bobcat", "Barcelona",  "Opteron_SSE3", "Nano",     "Unknown"};
  return std::find(std::begin(old), std::end(old), name) != std::end(old);
}

// True where the processor has the instructions of x86-64-v3 that kernels of OpenBLAS for AVX2 need.
inline bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

// True where the processor has the instructions that kernels of OpenBLAS for AVX-512 need.
inline bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// Starts this program again with OPENBLAS_CORETYPE where OpenBLAS took kernels without AVX on a processor with AVX2 and
// the user named none: OpenBLAS chooses before main() begins and once. To be called first in main(), since nothing of
// this process is left. Where the program cannot be started again, it goes on as it is.
inline void require_blas_cores(char** argv) {
  if (!has_avx2() || std::getenv("OPENBLAS_CORETYPE") != nullptr) return;
  const auto core_name = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (core_name == nullptr || !is_core_without_avx(core_name())) return;
  ::setenv("OPENBLAS_CORETYPE", has_avx512() ? "SkylakeX" : "Haswell", 1);
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error);  // its name is the process's
  ::execv(path.c_str(), argv);
}

}  // namespace sestina::host

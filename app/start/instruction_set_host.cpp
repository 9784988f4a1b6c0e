#include "app/start/instruction_set.hpp"

namespace sestina {

std::string instruction_set() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("amx-bf16")) return "amx-bf16";
  if (__builtin_cpu_supports("avx512bf16")) return "avx512bf16";
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
  return "x86-64";
#else
  return "other";
#endif
}

}  // namespace sestina

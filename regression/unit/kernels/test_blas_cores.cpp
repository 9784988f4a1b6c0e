#include <dlfcn.h>
#include <gtest/gtest.h>

#include "kernels/blas/host/blas_cores.hpp"

namespace sestina {
namespace {

// The program of tests started itself again where it had to.
TEST(BlasCores, AreThoseOfTheProcessor) {
  const auto core_name = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_corename"));
  if (core_name == nullptr) GTEST_SKIP() << "BLAS is not OpenBLAS";
  if (!host::has_avx2()) GTEST_SKIP() << "a processor without AVX2";
  EXPECT_FALSE(host::is_core_without_avx(core_name())) << core_name();
}

TEST(BlasCores, NamesOfOpenBlasAreKnown) {
  for (const char* name : {"Haswell", "Zen", "SkylakeX", "Cooperlake", "Sapphirerapids", "Sandybridge"})
    EXPECT_FALSE(host::is_core_without_avx(name)) << name;
  for (const char* name : {"Prescott", "Nehalem", "Core2", "Barcelona"})
    EXPECT_TRUE(host::is_core_without_avx(name)) << name;
}

}  // namespace
}  // namespace sestina

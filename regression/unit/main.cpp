// Every unit-test program: Kokkos lives as long as the tests do.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "kernels/blas/host/blas_cores.hpp"

int main(int argc, char** argv) {
  sestina::host::require_blas_cores(argv);
  testing::InitGoogleTest(&argc, argv);
  Kokkos::ScopeGuard kokkos(argc, argv);
  return RUN_ALL_TESTS();
}

#include "app/experiments/program.hpp"
#include "kernels/blas/host/blas_cores.hpp"

int main(int argc, char** argv) {
  sestina::host::require_blas_cores(argv);
  return sestina::run_diagnose(argc, argv);
}

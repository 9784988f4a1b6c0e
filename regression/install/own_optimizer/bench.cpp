#include "sestina/app/bench/program.hpp"
#include "sestina/core/optimizer/base/register_kind.hpp"
#include "sign_momentum.hpp"

int main(int argc, char** argv) {
  sestina::register_matrix_kind<SignMomentum>(sign_momentum_kind());
  return sestina::run_bench(argc, argv);
}

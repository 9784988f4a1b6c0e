// The verbs of `sestina diagnose`, one function and one file each. No Kokkos.
#pragma once
#include "app/command/verbs.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

int run_diagnose_hessian(const HessianArguments&, const RankSource&);

}  // namespace sestina

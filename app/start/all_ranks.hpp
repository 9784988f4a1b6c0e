// The ranks of a run where no program gives others: every task that the launcher started. No Kokkos.
#pragma once
#include "parallel/comm/runtime.hpp"

namespace sestina {

RankSource all_ranks();

}  // namespace sestina

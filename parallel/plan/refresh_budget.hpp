// How stages of an asynchronous pipeline share out refreshes of preconditioners (optimizer.refresh.budget): as much
// work in all as with one period for all stages, more often where gradients are older. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "parallel/plan/make_plan.hpp"

namespace sestina {

// Of stages that are so many updates late, (delay + 1)^power; reversed: (largest delay - delay + 1)^power.
std::vector<double> refresh_weights(const RefreshOptions&, const std::vector<int>& delays);

// Counts of refreshes in a window, one for each stage: in proportion to the weights, from 1 to `most`, rounded by the
// largest remainder, so that the sum of cost times count is at most that of `uniform` refreshes of each stage. No stage
// has more than one of a larger weight. cost: of one refresh of a stage.
std::vector<std::int64_t> share_refreshes(const std::vector<double>& cost, const std::vector<double>& weight,
                                          std::int64_t uniform, std::int64_t most);

// StagePlan::refreshes and refresh_window, where the deck's budget is another than uniform.
void plan_refreshes(Plan&);

}  // namespace sestina

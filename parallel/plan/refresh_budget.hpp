// How often preconditioners are refreshed where the deck gives no period for all of them. optimizer.refresh.budget:
// stages of an asynchronous pipeline share out as much work as with one period, more often where gradients are older.
// optimizer.refresh.every = "auto": as often as the workers of each rank can (core/optimizer/refresh/auto_period.hpp),
// which all of its stages share.
// No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/optimizer/refresh/auto_period.hpp"
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

// What the model of costs is told: seconds of an update, and FLOP/s of one worker at refreshes (MatrixKind::work).
struct RefreshSpeed {
  double step_s = 0, flops = 0;
  std::vector<RefreshRate> rates = {};  // by shape; flops: of those that have none
  double flops_of(std::int64_t rows, std::int64_t cols) const;
};
// "4096 x 1024 at 5.2 GFLOP/s (measured at 1024 x 1024), ...".
std::string to_text(const RefreshSpeed&);

// Of all matrices of the model by their index; of a matrix on several ranks the longest.
struct RefreshPeriods {
  std::vector<std::int64_t> of;
  int late = 0;  // matrices that take longer than S updates by themselves
};
RefreshPeriods fit_periods(const Plan&, const RefreshSpeed&);

// "every 6 to 18 updates, 9.5 in the mean".
std::string to_text(const RefreshPeriods&);

}  // namespace sestina

// Decides how often preconditioners are refreshed where the deck gives no period for all of them.
// optimizer.refresh.budget: stages of an asynchronous pipeline share out as much work as with one period, more often
// where gradients are older. optimizer.refresh.every = "auto": as often as the workers of each rank can
// (core/optimizer/refresh/auto_period.hpp), which all of its stages share; and who computes them (executor = "auto").
// No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/optimizer/refresh/auto_period.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

// Returns the weights of stages that are so many updates late: (delay + 1)^power; reversed: (largest delay - delay +
// 1)^power.
std::vector<double> refresh_weights(const RefreshOptions&, const std::vector<int>& delays);

// Returns the count of refreshes of each stage in a window: in proportion to the weights, from 1 to `most`, rounded by
// the largest remainder, so that the sum of cost times count is at most that of `uniform` refreshes of each stage. No
// stage has more than one of a larger weight. cost: that of one refresh of a stage.
std::vector<std::int64_t> share_refreshes(const std::vector<double>& cost, const std::vector<double>& weight,
                                          std::int64_t uniform, std::int64_t most);

// Sets StagePlan::refreshes and refresh_window, where the deck's budget is another than uniform.
void plan_refreshes(Plan&);

// The speeds that the model of costs is given: the seconds of an update, and FLOP/s of one worker at refreshes
// (MatrixKind::work).
struct RefreshSpeed {
  double step_s = 0, flops = 0;
  std::vector<RefreshRate> rates = {};  // by shape; `flops` is for shapes that have none
  double flops_of(std::int64_t rows, std::int64_t cols) const;
};
// Writes "4096 x 1024 at 5.2 GFLOP/s (measured at 1024 x 1024), ...".
std::string to_text(const RefreshSpeed&);

// The periods of all matrices of the model by their index; a matrix on several ranks has the longest of theirs.
struct RefreshPeriods {
  std::vector<std::int64_t> of;
  int late = 0;  // matrices that alone take longer than the staleness, S updates
};
RefreshPeriods fit_periods(const Plan&, const RefreshSpeed&);

// How late results are used that the workers of all ranks have ready in time (optimizer.refresh.staleness = "auto").
struct RefreshLag {
  std::int64_t updates = 0;  // S; 0: not chosen
  bool is_enough = true;     // false: workers need more than a period has, and updates wait
};
RefreshLag fit_staleness(const Plan&, const RefreshSpeed&);
std::string to_text(const RefreshLag&);  // "used 3 updates after their copies"

// Returns the FLOP/s of a worker that the deck declares (machine.worker_gflops), if it does.
std::optional<double> declared_flops(const MachineOptions&);

// Who computes the refreshes of each matrix of the model (optimizer.refresh.executor = "auto").
struct RefreshExecutors {
  // Equal matrices of all layers: the costs of one, and how many of them the update refreshes.
  struct Row {
    std::string pattern;
    std::int64_t rows = 0, cols = 0;
    double bytes = 0;  // on the link
    ExecutorCost cost;
    std::int64_t matrices = 0, in_update = 0;
  };
  std::vector<std::uint8_t> in_update;  // by index of the matrix
  std::vector<Row> table;
};
// Chooses by rank. A matrix on several ranks is refreshed in the update where one of them chooses so: replicas have the
// same bits. periods: by index; empty: those of the deck. Throws Error(bad_deck) where require_link() does.
RefreshExecutors choose_executors(const Plan&, const RefreshSpeed&, const RefreshPeriods& periods);
// Returns a head line and one line for each row, in columns.
std::vector<std::string> table_lines(const RefreshExecutors&);
std::string to_text(const RefreshExecutors&);  // "12 of 16 matrices by workers, 4 in the update"

// Writes "every 6 to 18 updates, 9.5 in the mean".
std::string to_text(const RefreshPeriods&);

}  // namespace sestina

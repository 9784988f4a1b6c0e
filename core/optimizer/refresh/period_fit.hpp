// optimizer.refresh.every = "auto": a period for each matrix of a rank, such that its workers have each result when it
// is due, S = optimizer.refresh.staleness updates after its copy. No Kokkos.
//
// The mean age of a matrix's preconditioners grows with its period p, the workers' load with c / p for a refresh that
// takes c seconds: over all matrices the mean age is least where p is in proportion to sqrt(c). The scale of the
// periods is the smallest one at which the workers, played through update by update, are late with nothing.
#pragma once
#include <cstdint>
#include <vector>

namespace sestina {

// Refreshes of one matrix, on the rank that has it.
struct RefreshLoad {
  std::int64_t index = 0;           // of the matrix in the whole model, for its phase (refresh_phase)
  std::vector<double> jobs = {};    // seconds of each, on a worker
  double seconds() const;           // of all
  double alone(int workers) const;  // until so many workers that do nothing else have done them
};

// By load. At least S + 1. A matrix that takes longer than S updates by itself is late whatever the period: it is
// expected as soon as it can be done alone.
std::vector<std::int64_t> fit_periods(const std::vector<RefreshLoad>&, int workers, std::int64_t staleness,
                                      double step_s);

// Whether `workers` that take the job with the nearest deadline next (WorkerPool) are ever late with these periods.
bool is_in_time(const std::vector<RefreshLoad>&, const std::vector<std::int64_t>& periods, int workers,
                std::int64_t staleness, double step_s);

}  // namespace sestina

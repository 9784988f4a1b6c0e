// optimizer.refresh.every = "auto": the speed at which one worker refreshes, and the period of each matrix that follows
// from it; staleness = "auto": how late results are that workers have ready in time. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

// The speed at which one worker refreshes, measured with the optimizer's own code (optimizer.refresh.every = "auto").
struct RefreshRate {
  std::int64_t rows = 0, cols = 0;  // sizes of the matrix
  std::int64_t measured_rows = 0,
               measured_cols = 0;  // sizes of the largest one that there was time for; 0: nothing to measure
  double flops = 0;                // FLOP/s, as MatrixKind::work counts them
};

// Measures refreshes of a rows x cols matrix on one core: the median over a few updates with random gradients, after
// the first ones, which make first bases. Sides are cut to 256, then to twice that, and so on up to those of the
// matrix, as long as all measurements keep to so many seconds: one that takes eight times as long is foreseen. Where
// that ends before the whole matrix, its rate is the one at the largest sides, or less where rates fell from the size
// before to that one: by as much again at each doubling. Infinite for a matrix that has nothing to refresh.
RefreshRate measure_refresh_rate(const MatrixOptions&, std::int64_t rows, std::int64_t cols, double most_seconds);

// optimizer.refresh.every = "auto": a period for each matrix of a rank, such that its workers have each result when it
// is due, S = optimizer.refresh.staleness updates after its copy.
//
// The mean age of a matrix's preconditioners grows with its period p, the workers' load with c / p for a refresh that
// takes c seconds: over all matrices the mean age is least where p is in proportion to sqrt(c). The scale of the
// periods is the smallest one at which the workers, played through update by update, are late with nothing.

// Refreshes of one matrix, on the rank that has it.
struct RefreshLoad {
  std::int64_t index = 0;           // number of the matrix in the whole model, for its phase (refresh_phase)
  std::vector<double> jobs = {};    // seconds of each job, on a worker
  std::int64_t rows = 0, cols = 0;  // of the matrix
  double seconds() const;           // of all jobs
  double alone(int workers) const;  // until so many workers that do nothing else have done them
};

// Returns the periods by load, at least S + 1. A matrix that takes longer than S updates by itself is late whatever the
// period: it is expected as soon as it can be done alone.
std::vector<std::int64_t> fit_periods(const std::vector<RefreshLoad>&, int workers, std::int64_t staleness,
                                      double step_s);

// optimizer.refresh.staleness = "auto": returns the smallest S, from 1 to every - 1, at which the workers, played
// through in the same way, are late with nothing, where all matrices are due in every `every`-th update, or (staggered)
// matrix i at t + i. 0: none is enough.
std::int64_t fit_staleness(const std::vector<RefreshLoad>&, std::int64_t every, bool staggered, int workers,
                           double step_s);

// optimizer.refresh.executor = "auto": who computes the refreshes of each matrix of a rank, its workers, for which
// copies and results go over the link between a device and its host, or the space that computes, in the update. A
// worker costs an update what this waits for it, the space all that it takes.

// The costs of a refresh of a matrix.
struct ExecutorCost {
  double link_s = 0;    // copies and results on the link
  double worker_s = 0;  // all of its jobs, one after the other
  double alone_s = 0;   // until workers that do nothing else have done them
  double device_s = 0;  // in the update
  double every = 1;     // updates from one to the next
  bool operator==(const ExecutorCost&) const = default;
};

// What there is for them: workers and the link for step_s in each update, S = staleness updates for each result.
struct ExecutorRoom {
  int workers = 1;
  std::int64_t staleness = 1;
  double step_s = 0;
};

// Returns for each matrix whether the update refreshes it. Those that workers, or the link, cannot have done in S
// updates by themselves go first, where an update waits longer for them than it computes; then, as long as all that is
// left takes more of the workers or of the link than an update lasts, those that cost the update least for what they
// free, if they cost less than they free. A function of these numbers alone, so that all ranks that have the same ones
// choose the same; equal matrices are taken in their order.
std::vector<bool> choose_executors(const std::vector<ExecutorCost>&, const ExecutorRoom&);

// Returns whether `workers` that take the job with the nearest deadline next (WorkerPool) are never late with these
// periods.
bool is_in_time(const std::vector<RefreshLoad>&, const std::vector<std::int64_t>& periods, int workers,
                std::int64_t staleness, double step_s);

}  // namespace sestina

// How fast one worker refreshes, measured with the optimizer's own code (optimizer.refresh.every = "auto"). No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

struct RefreshRate {
  std::int64_t rows = 0, cols = 0;  // of the matrix
  std::int64_t measured_rows = 0,
               measured_cols = 0;  // of the largest one that there was time for; 0: nothing to measure
  double flops = 0;                // FLOP/s, as MatrixKind::work counts them
};

// Refreshes of a rows x cols matrix on one core: the median over a few updates with random gradients, after the first
// ones, which make first bases. Sides are cut to 256, then to twice that, and so on up to those of the matrix, as long
// as all that is done here keeps to so many seconds: what takes eight times as long is foreseen. Where that ends before
// the whole matrix, its rate is the one at the largest sides, or less where rates fell from the size before to that
// one: by as much again at each doubling. Infinite for a matrix that has nothing to refresh.
RefreshRate measure_refresh_rate(const MatrixOptions&, std::int64_t rows, std::int64_t cols, double most_seconds);

}  // namespace sestina

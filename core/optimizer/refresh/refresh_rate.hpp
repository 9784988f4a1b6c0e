// How fast one worker refreshes, measured with the optimizer's own code (optimizer.refresh.every = "auto").
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

// FLOP/s, as MatrixKind::work counts them, of refreshes of a rows x cols matrix on one core: the median over a few
// updates with random gradients, behind the first ones, which make first bases. Sides are cut down to a size that takes
// milliseconds: larger ones run no slower. Infinite for a matrix that has nothing to refresh.
double measure_refresh_rate(const MatrixOptions&, std::size_t rows, std::size_t cols);

}  // namespace sestina

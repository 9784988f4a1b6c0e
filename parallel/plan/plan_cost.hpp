// What updating a matrix costs, for the balance of loads. No Kokkos.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// FLOPs of one update of a matrix as its kind states them (core/optimizer/kinds/work.hpp), whatever is executed. Kinds
// that state none, and names that are no kind, cost their number of elements.
double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols);

// Seconds of one update from what is executed with these options: products at the machine's peak, refreshes by their
// period, passes over memory at its bandwidth.
double update_seconds(const MatrixOptions&, std::int64_t rows, std::int64_t cols, const MachineOptions&);

// Cost of one tensor, all its heads where it is updated by heads: elements, FLOPs (rounded by matrix), or nanoseconds.
std::int64_t tensor_cost(const TensorSpec&, const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);

// Bytes of optimizer state of matrices. A model has few shapes, and some kinds list their state block by block: each
// shape is asked for once.
class StateBytes {
 public:
  explicit StateBytes(const OptimizerOptions& optimizer) : optimizer_(optimizer) {}
  std::size_t of(const TensorSpec&);

 private:
  const OptimizerOptions& optimizer_;
  std::map<std::tuple<std::int64_t, std::int64_t, int>, std::size_t> known_;  // rows, columns, heads
};

// Error(bad_deck) when [machine] lacks what parallel.cost = "seconds" needs.
void require_machine(ParallelOptions::Cost, const MachineOptions&);

}  // namespace sestina

// What updating a matrix costs, for the balance of loads. No Kokkos.
#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// FLOPs of one update of a matrix, a model that does not follow what is executed: stated ratios can be checked by
// anyone. With M the longer and m the shorter side, refreshes every 10 updates:
//   muon, normuon, adamuon      five iterations of three products: 5 (4 M m^2 + 2 m^3)
//   soap, kl-soap, basis-rotation   by side of length a, the other b: 8 a^2 b + (22/3) a^3 / 10
//   shampoo, kl-shampoo             by side: 4 a^2 b + 11 a^3 / 10
// A side above 10,000 has no factor. Others work element by element: their cost is the number of elements.
double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols);

// Seconds of one update from what is executed (symmetric products at half cost) at the machine's peak and bandwidth.
double update_seconds(std::string_view kind, std::int64_t rows, std::int64_t cols, const MachineOptions&);

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

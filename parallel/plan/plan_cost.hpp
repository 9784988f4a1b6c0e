// What updating a matrix costs, for the balance of loads. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// FLOPs of one update of a matrix as its kind states them (core/optimizer/base/work.hpp), whatever is executed. Kinds
// that state none, and names that are no kind, cost their number of elements.
double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols);

// Seconds of one update from what is executed with these options: products at the machine's peak, refreshes by their
// period, passes over memory at its bandwidth.
double update_seconds(const MatrixOptions&, std::int64_t rows, std::int64_t cols, const MachineOptions&);

// Cost of one tensor, all its heads where it is updated by heads: elements, FLOPs (rounded by matrix), or nanoseconds.
std::int64_t tensor_cost(const TensorSpec&, const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);

// A number of matrices that follows from their shape. A model has few shapes and very many matrices, and some kinds go
// through theirs block by block: each shape is asked for once.
template <class Number>
class ByShape {
 public:
  explicit ByShape(std::function<Number(const TensorSpec&)> number) : number_(std::move(number)) {}
  Number of(const TensorSpec& spec) {
    const auto [place, is_new] = known_.try_emplace({spec.rows, spec.cols, spec.heads, spec.skew_block}, Number{});
    if (is_new) place->second = number_(spec);
    return place->second;
  }

 private:
  std::function<Number(const TensorSpec&)> number_;
  using Shape = std::tuple<std::int64_t, std::int64_t, int, std::int64_t>;  // rows, columns, heads, skew blocks
  std::map<Shape, Number> known_;
};

// Of tensor_cost, and bytes of optimizer state. What is given must outlive them.
ByShape<std::int64_t> tensor_costs(const OptimizerOptions&, ParallelOptions::Cost, const MachineOptions&);
ByShape<std::size_t> state_bytes(const OptimizerOptions&);

// Error(bad_deck) when [machine] lacks what parallel.cost = "seconds" needs.
void require_machine(ParallelOptions::Cost, const MachineOptions&);

}  // namespace sestina

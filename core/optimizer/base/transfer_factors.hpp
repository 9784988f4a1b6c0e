// What schedule.transfer makes of the numbers of one tensor: core/deck/transfer.hpp has the rules. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// Factors of the deck's numbers for one tensor.
struct TransferFactors {
  double lr = 1, decay = 1, init = 1;
};
// by_kind: optimizer.kind updates it, and not the elementwise rule.
TransferFactors transfer_factors(const RateTransfer&, const TensorSpec&, bool by_kind);

// Returns what was derived, a line for each set of tensors; empty without a transfer.
std::vector<std::string> transfer_lines(const Options&);

}  // namespace sestina

#include "core/optimizer/base/transfer_factors.hpp"

#include <fmt/format.h>

#include <cmath>

namespace sestina {

// decay: that of the deck is multiplied by the rate, so that lr decay falls as m^-1.
TransferFactors transfer_factors(const RateTransfer& transfer, const TensorSpec& spec, bool by_kind) {
  TransferFactors factors;
  if (spec.role == Role::embedding) return factors;
  if (spec.role != Role::vector) {
    const double power = by_kind ? transfer.matrix_power : transfer.element_power;
    factors.lr = std::pow(transfer.width, -power);
    factors.decay = std::pow(transfer.width, power - 1);
    factors.init = std::pow(transfer.width, spec.role == Role::head ? -1 : -0.5);
  }
  if (!spec.ends_branch) return factors;
  factors.init /= transfer.depth;
  if (by_kind && transfer.sized_by_weight) return factors;  // the smaller weight moves by as much less
  factors.lr /= transfer.depth;
  factors.decay *= transfer.depth;
  return factors;
}

std::vector<std::string> transfer_lines(const Options& options) {
  const RateTransfer& transfer = options.optimizer.transfer;
  std::vector<std::string> lines;
  if (!transfer.on()) return lines;
  lines.push_back(fmt::format("transfer   of rates tuned at {:.4g} of the width and {:.4g} of the depth",
                              1 / transfer.width, 1 / transfer.depth));
  const bool matrix = options.optimizer.matrix.has_value();
  const auto add = [&](const char* what, Role role, bool ends, bool by_kind) {
    TensorSpec spec;
    spec.role = role;
    spec.ends_branch = ends;
    const TransferFactors f = transfer_factors(transfer, spec, by_kind);
    lines.push_back(
        fmt::format("{:36} lr x {:.4g}, decay x {:.4g}, first weights x {:.4g}", what, f.lr, f.decay, f.init));
  };
  add("matrices in blocks", Role::matrix, false, matrix);
  if (transfer.depth != 1) add("o_proj and down_proj", Role::matrix, true, matrix);
  add("head", Role::head, false, false);
  lines.emplace_back("embeddings, norms and biases         as the deck says");
  return lines;
}

}  // namespace sestina

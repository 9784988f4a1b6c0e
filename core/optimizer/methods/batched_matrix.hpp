// What an item of a batch says of its matrix, as one that Newton-Schulz makes orthogonal with others
// (kernels/optimizer/muon/muon_batch.hpp): of Muon, its variants and SOAP-Muon.
#pragma once
#include "core/optimizer/base/update_batches.hpp"
#include "kernels/optimizer/muon/muon_batch.hpp"

namespace sestina {

template <class Space>
BatchedMatrix batched_matrix(const BatchItem<Space>& item, float* momentum, double scale) {
  BatchedMatrix one;
  one.gradient = item.matrix.gradient.data();
  one.momentum = momentum;
  one.master = item.matrix.master.data();
  one.weight = item.matrix.weight.data();
  one.rows = static_cast<std::uint32_t>(item.matrix.rows());
  one.cols = static_cast<std::uint32_t>(item.matrix.cols());
  one.lr = item.rates.lr;
  one.weight_decay = item.rates.weight_decay;
  one.scale = scale;
  return one;
}

}  // namespace sestina

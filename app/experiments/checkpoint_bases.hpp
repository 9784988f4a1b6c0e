// Orthogonal bases that an optimizer left in a checkpoint (SOAP, SOAP-Muon, basis rotation, KL-SOAP, KL-Shampoo,
// Shampoo with root = "qr"), as rotations of the model's matrices.
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "core/hessian_norm.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

// Returns the bases of those tensors, in order, that have one on either side; a tensor that is updated by heads or
// blocks, as the run's options say, has several. A basis of zeros has not begun. Error(bad_data) for one that is not
// orthogonal.
std::vector<RotatedCoordinates> read_bases(const CheckpointReader&, const std::vector<TensorSpec>&,
                                           const OptimizerOptions&);

}  // namespace sestina

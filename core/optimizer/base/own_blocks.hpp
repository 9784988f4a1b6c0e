// Kinds that cut a matrix into blocks by themselves keep the state of block (i, j) in fields "block_<i>_<j>.<name>"
// (core/optimizer/methods/shampoo/shampoo.hpp). Such blocks know nothing of one another: on several ranks each may be
// updated as a matrix by itself, and its state is still that of the whole matrix, of which the rank holds a part. No
// Kokkos.
#pragma once
#include <cstddef>
#include <vector>

#include "core/memory/state_field.hpp"
#include "core/optimizer/base/routing.hpp"

namespace sestina {

// Returns the blocks that the kind cuts the tensor into, in the order of its fields, named "<HF name>/share_<i>_<j>";
// none where it cuts none, or where a block by itself would be treated in another way.
std::vector<MatrixPart> own_blocks(const TensorSpec&, const OptimizerOptions&);

// Makes a field of the state of block number `number`, which was updated by itself, the part of the whole tensor's
// state that it is: its place is "/optimizer/<HF name>/<field>", and a counter that all blocks have is saved by the
// first.
void become_part_of_whole(StateField&, const TensorSpec& whole, const MatrixPart& block, std::size_t number,
                          const OptimizerOptions&);

}  // namespace sestina

// Scratch of an update as plans count it: the numbers by which the streams' workspaces are made. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/optimizer/base/routing.hpp"

namespace sestina {

// Returns the bytes that a stream on the host takes for a matrix.
std::size_t host_scratch(const MatrixOptions&, const MatrixPart&);

// Returns the bytes for a shard (rows, cols) of a matrix that is updated where its shards are; cut_rows: the matrix is
// cut at rows. computes_bf16: the model computes in bf16.
std::size_t host_shard_scratch(const MatrixOptions&, std::int64_t rows, std::int64_t cols, bool cut_rows,
                               bool computes_bf16);

// Returns the bytes that measures of an update take (core/update_meter.hpp): for tensors of so many elements, and for a
// matrix whose Gram matrix has such a side; skew_block: see TensorSpec, 0: it is not packed.
std::size_t host_meter_scratch(std::size_t elements, std::size_t gram_side, std::size_t skew_block);

}  // namespace sestina

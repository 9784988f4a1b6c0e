// What an update takes as plans count it: the numbers by which the streams' workspaces are made, and what shards keep
// and sum. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/optimizer/base/routing.hpp"

namespace sestina {

// Returns the bytes that a stream on the host takes for a matrix.
std::size_t host_scratch(const MatrixOptions&, const MatrixPart&);

// Returns the bytes that it adds on a device to those of a batch of matrices (update_batches.hpp); 0: it is updated
// alone. A batch takes at most so much as all matrices of a model of 134 million parameters take of Muon in bf16.
std::size_t device_batch_scratch(const MatrixOptions&, const MatrixPart&);
inline constexpr std::size_t most_batch_scratch = std::size_t{512} << 20;
// Returns what the batches of matrices take that add so many bytes in all: they are made one after the other.
inline std::size_t batches_scratch(std::size_t all) { return all < most_batch_scratch ? all : most_batch_scratch; }

// Returns the bytes for a shard of a matrix that is updated where its shards are. computes_bf16: the model computes in
// bf16.
std::size_t host_shard_scratch(const MatrixOptions&, const TensorSpec& whole, const TensorSpec& shard,
                               bool computes_bf16);
// Returns the numbers of its second moment: none for Muon; for NorMuon one for each row that it has of a matrix with at
// least as many rows as columns, else for each column.
std::int64_t shard_moments(const MatrixOptions&, const TensorSpec& whole, const TensorSpec& shard);
// Returns the numbers in double that ranks sum for it in addition to what Newton-Schulz sums: squares before and after
// the division by the moment, or, where each rank has a part of NorMuon's rows or columns, the squares of each.
std::int64_t shard_sums(const MatrixOptions&, const TensorSpec& whole, const TensorSpec& shard);

// Returns the bytes that measures of an update take (core/update_meter.hpp): for tensors of so many elements, and for a
// matrix whose Gram matrix has such a side; skew_block: see TensorSpec, 0: it is not packed.
std::size_t host_meter_scratch(std::size_t elements, std::size_t gram_side, std::size_t skew_block);

}  // namespace sestina

// The workspace of a model's passes as plans count it and the model allocates it. No Kokkos.
#pragma once
#include "core/layout/model_size.hpp"

namespace sestina {

// Returns the bytes that a pass holds (scratch_bytes), plus the most that one kernel takes for itself: kernels run one
// after another. threads: number on the host; 0: a device.
std::size_t workspace_bytes(const ModelPart&, int micro_batch, int sequence, StorageWidth, int threads);

// Returns the bytes of cosines and sines of all positions; 0 where positions are learned.
std::size_t rope_table_bytes(const ModelConfig&, int sequence, StorageWidth);

}  // namespace sestina

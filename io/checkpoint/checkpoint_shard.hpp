// The two kinds of HDF5 file in a checkpoint: a rank's shard and global.h5, which shows every tensor whole. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

std::string shard_name(std::int64_t rank);  // "shard_00003.h5"

// The bytes of a field in host memory, good until the next call.
using FieldData = std::function<const void*(const StateField&)>;

// Writes the fields and the run state to `path`; returns one tensor per field with its one piece, whose file number is
// `file`. A field is a slab of its tensor, one of each tensor; empty slabs are left out (a tensor that has no elements
// at all is written). The data come from `data`, which is asked for one field after the other; without it they are in
// host memory. Digests are taken from the memory that is written.
std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t file, const std::vector<StateField>&,
                                        const RunState&, const FieldData& data = {});
// Virtual datasets over the shards named in manifest.files.
void write_global(const std::string& path, const Manifest&);

}  // namespace sestina

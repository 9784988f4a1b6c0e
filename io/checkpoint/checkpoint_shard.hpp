// The two kinds of HDF5 file in a checkpoint: a rank's shard and global.h5, which shows every tensor whole. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

std::string shard_name(std::int64_t rank);  // "shard_00003.h5"

// Gives the bytes of a field from the first to the last: calls use(data, bytes) for one piece after the other.
using UseBytes = std::function<void(const void* data, std::size_t bytes)>;
using FieldData = std::function<void(const StateField&, const UseBytes&)>;

// Writes the fields and the run state to `path`; returns one tensor per field with its one piece, whose file number is
// `file`. A field is a slab of its tensor, one of each tensor; empty slabs are left out (a tensor that has no elements
// at all is written). Those that do not lie in memory come from `data`, which is asked for one after the other, before
// all others are written. Digests are taken from the memory that is written.
std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t file, const std::vector<StateField>&,
                                        const RunState&, const FieldData& data = {});
// Virtual datasets over the shards named in manifest.files.
void write_global(const std::string& path, const Manifest&);

}  // namespace sestina

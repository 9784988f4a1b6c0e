// The two kinds of HDF5 file in a checkpoint: a rank's shard and global.h5, which shows every tensor whole. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "io/manifest.hpp"

namespace sestina {

// Writes the fields (host memory) and the run state to `path`; returns one tensor per field with its one piece, whose
// file number is `file`. Digests are taken from the memory that is written.
std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t file, const std::vector<StateField>&,
                                        const RunState&);
// Virtual datasets over the shards named in manifest.files.
void write_global(const std::string& path, const Manifest&);

}  // namespace sestina

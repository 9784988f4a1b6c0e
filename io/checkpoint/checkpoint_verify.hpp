// Checks whether a checkpoint folder is sound. Sizes and digests are checked first, without HDF5, and only then
// datasets through HDF5. No Kokkos.
#pragma once
#include <string>

#include "io/checkpoint/manifest.hpp"
#include "io/store/digest.hpp"

namespace sestina {

// Reads and checks manifest.json. Error(bad_data); Error(input_missing) if the folder is not there at all.
Manifest load_manifest(const std::string& checkpoint);
// Checks that every file is there, that no shard is there that is not listed, and that sizes agree. Error(bad_data).
void check_sizes(const std::string& checkpoint, const Manifest&);
// Checks that no shard is there that is not listed. Error(bad_data).
void check_extra_files(const std::string& checkpoint, const Manifest&);
// Checks size and digest of one file; a wrong digest is traced to the tensor it hits. Error(bad_data).
void check_file(const std::string& checkpoint, const Manifest&, std::size_t file, const Poll& poll = {});
// Calls check_sizes, then check_file for every file. Error(bad_data).
void check_digests(const std::string& checkpoint, const Manifest&, const Poll& poll = {});
// Checks that every value of every tensor is finite. Error(bad_data) names the first that is not; call after
// check_digests.
void check_finite(const std::string& checkpoint, const Manifest&, const Poll& poll = {});
// Reads every dataset of a shard through HDF5 and compares type, shape and bytes; call after check_file.
// Error(bad_data).
void check_shard(const std::string& checkpoint, const Manifest&, std::size_t file);
// Reads every dataset of all files through HDF5; call after check_digests. Error(bad_data).
void check_datasets(const std::string& checkpoint, const Manifest&);

}  // namespace sestina

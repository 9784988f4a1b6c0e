// Several ranks write one checkpoint without a message: each puts its shard and a description of it into the common
// temporary folder, the first rank waits for the descriptions and puts them together. A description appears whole, by
// rename. No Kokkos.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

// The shard that one rank wrote, or the reason why it could not.
struct ShardPart {
  ManifestFile file;
  std::vector<ManifestTensor> tensors;  // one piece each, in file number 0
  std::string error;
};

std::string part_text(const ShardPart&);
ShardPart parse_part(std::string_view text, const std::string& where);  // Error(bad_data)

void publish_part(const std::string& folder, int rank, const ShardPart&);
// Waits for the parts of ranks 1 to ranks - 1, and removes their descriptions. Error(io_error) names the rank and the
// reason as soon as one reports an error, or when `timeout` seconds are over.
std::vector<ShardPart> collect_parts(const std::string& folder, int ranks, double timeout);

// Puts the shards of all ranks into manifest.files, their tensors into manifest.tensors, each whole. An Error names a
// tensor that the ranks do not agree on, or of which something is missing or written twice.
void merge_parts(const std::vector<ShardPart>&, Manifest&);

}  // namespace sestina

// manifest.json of a checkpoint: what it holds, where each piece lies, and the digests that vouch for it. Its last
// member is the digest of all bytes before it. Reading is strict: nothing in it is believed before it has been checked
// against limits, against itself, and (by the caller) against the files. Members: inputs/README.md, "Checkpoints". No
// Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory/state_field.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace sestina {

struct ManifestFile {
  std::string name;  // "shard_00000.h5" or "global.h5"
  std::uint64_t size = 0;
  std::string xxh3_128;
};

// Rows [row_begin, row_end) of columns [col_begin, col_end) of a tensor, at `offset` of file number `file`. Columns 0,
// 0 are all of them; they are written only where they are not.
struct ManifestPiece {
  std::size_t file = 0;
  std::int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::string xxh3_64;
};

struct ManifestTensor {
  std::string path;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t version = 0;
  std::vector<ManifestPiece> pieces;  // in the order of their first rows and columns, without gap or overlap
};

struct Manifest {
  std::uint64_t serial = 0;  // counts the saves of a run directory: tells which is newest after a rewind
  std::int64_t ranks = 1, dp = 1, tp = 1, pp = 1;  // who wrote it: ranks = dp tp pp
  RunState run;
  std::vector<ManifestFile> files;
  std::vector<ManifestFile> companions = {};  // in their sub-folder (checkpoint_companions.hpp)
  std::vector<ManifestTensor> tensors;
};

inline constexpr std::int64_t kManifestVersion = 1;

std::uint64_t bytes_of(const Manifest&);  // of all its files

// The finished text, digest included.
std::string manifest_text(const Manifest&);
// Appends the digest to the text of a JSON object (ends in "}").
std::string seal_manifest(std::string_view object);
// Error(bad_data) on any defect; `where` begins the message.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace sestina

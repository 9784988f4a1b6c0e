// manifest.json of a checkpoint: what it holds, where each piece lies, and the digests that vouch for it. Its last
// member is the digest of all bytes before it. Reading is strict: nothing in it is believed before it has been checked
// against limits, against itself, and (by the caller) against the files. Members: inputs/README.md, "Checkpoints". No
// Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
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
// 0 mean all columns; columns are written only where they are not all.
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
  std::uint64_t serial = 0;  // counts the saves of a run directory: tells the newest after a rewind
  std::int64_t ranks = 1, dp = 1, tp = 1, pp = 1;  // ranks that wrote it: ranks = dp tp pp
  RunState run;
  std::vector<ManifestFile> files;
  std::vector<ManifestFile> companions = {};  // in their sub-folder (checkpoint_companions.hpp)
  std::vector<ManifestTensor> tensors;
};

inline constexpr std::int64_t kManifestVersion = 1;

std::uint64_t bytes_of(const Manifest&);  // those of all its files

// Returns the finished text, digest included.
std::string manifest_text(const Manifest&);
// Appends the digest to the text of a JSON object (ends in "}").
std::string seal_manifest(std::string_view object);
// Reads a manifest; Error(bad_data) on any defect; `where` begins the message.
Manifest parse_manifest(std::string_view text, const std::string& where);

// A manifest and the parts of one are read as JSON with its own digest as last member, every member by name, none
// twice, none unknown. Error(bad_data) names the place.
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // whole numbers that every JSON reader keeps exact

// The members of one JSON object, each once; every failure names the member.
class Members {
 public:
  Members(const nlohmann::json& object, std::string where);
  bool has(const char* key) const { return object_.contains(key); }
  const nlohmann::json& get(const char* key);
  std::int64_t count(const char* key, std::int64_t max = kMaxCount);
  std::uint64_t word(const char* key);  // any 64-bit value
  double number_or_null(const char* key);
  std::string text(const char* key);
  std::string digest(const char* key, std::size_t digits);
  const nlohmann::json& list(const char* key);
  void finish() const;  // fails where there are members that were not read

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::size_t read_ = 0;
};

// Checks the digest, then reads what it vouches for.
nlohmann::json parse_sealed(std::string_view text, const std::string& where);
// Returns the text of an object with its digest.
std::string sealed_text(const nlohmann::ordered_json& object);

// Write files, tensors and their pieces, which say where tensors lie (manifest_tensors.cpp).
nlohmann::ordered_json files_json(const std::vector<ManifestFile>&);
nlohmann::ordered_json tensors_json(const std::vector<ManifestTensor>&, const std::vector<ManifestFile>&);

// Read the same, strictly as all of a manifest: each piece lies inside its tensor and its file.
std::vector<ManifestFile> read_files(const nlohmann::json& list, const std::string& where);
std::vector<ManifestTensor> read_tensors(const nlohmann::json& list, const std::vector<ManifestFile>&,
                                         const std::string& where);
// Checks that the pieces are in the order of their corners, from different files, and hold each element once; a tensor
// without elements has one piece, which is all of it. Error(bad_data).
void check_tiling(const ManifestTensor&, const std::string& where);

// Write the layout of the ranks that wrote it, and the state of the run (manifest.cpp).
nlohmann::ordered_json layout_json(const Manifest&);
nlohmann::ordered_json run_json(const RunState&);  // all but the step

// Read the same, strictly as all of a manifest. Error(bad_data).
void read_layout(const nlohmann::json&, Manifest&, const std::string& where);
RunState read_run(const nlohmann::json&, std::int64_t step, const std::string& where);

}  // namespace sestina

// How a manifest and the parts of one are read: JSON with its own digest as last member, every member by name, nothing
// twice, nothing unknown. Error(bad_data) names the place. No Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

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
  void finish() const;  // no members but those read

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::size_t read_ = 0;
};

// Checks the digest, then reads what it vouches for.
nlohmann::json parse_sealed(std::string_view text, const std::string& where);
// The text of an object with its digest.
std::string sealed_text(const nlohmann::ordered_json& object);

// Files, tensors and their pieces: where tensors lie (manifest_tensors.cpp).
nlohmann::ordered_json files_json(const std::vector<ManifestFile>&);
nlohmann::ordered_json tensors_json(const std::vector<ManifestTensor>&, const std::vector<ManifestFile>&);

// Strict, as all of a manifest; each piece lies inside its tensor and its file.
std::vector<ManifestFile> read_files(const nlohmann::json& list, const std::string& where);
std::vector<ManifestTensor> read_tensors(const nlohmann::json& list, const std::vector<ManifestFile>&,
                                         const std::string& where);
// The pieces are in the order of their corners, from different files, and hold each element once. A tensor without
// elements has one piece, which is all of it. Error(bad_data).
void check_tiling(const ManifestTensor&, const std::string& where);

// The ranks that wrote it, and the state of the run (manifest_run.cpp).
nlohmann::ordered_json layout_json(const Manifest&);
nlohmann::ordered_json run_json(const RunState&);  // all but the step

// Strict, as all of a manifest. Error(bad_data).
void read_layout(const nlohmann::json&, Manifest&, const std::string& where);
RunState read_run(const nlohmann::json&, std::int64_t step, const std::string& where);

}  // namespace sestina

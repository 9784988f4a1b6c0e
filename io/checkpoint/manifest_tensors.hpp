// The entries of a manifest that say where tensors lie: files, tensors, pieces; and whether pieces make a whole. No
// Kokkos.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"

namespace sestina {

nlohmann::ordered_json files_json(const std::vector<ManifestFile>&);
nlohmann::ordered_json tensors_json(const std::vector<ManifestTensor>&, const std::vector<ManifestFile>&);

// Strict, as all of a manifest; each piece lies inside its tensor and its file.
std::vector<ManifestFile> read_files(const nlohmann::json& list, const std::string& where);
std::vector<ManifestTensor> read_tensors(const nlohmann::json& list, const std::vector<ManifestFile>&,
                                         const std::string& where);
// The pieces are in the order of their corners, from different files, and hold each element once. A tensor without
// elements has one piece, which is all of it. Error(bad_data).
void check_tiling(const ManifestTensor&, const std::string& where);

}  // namespace sestina

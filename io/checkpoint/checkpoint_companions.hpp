// Small files that a checkpoint carries in addition to its tensors, byte for byte, in one sub-folder: those of a
// Hugging Face folder that belong to the model (io/hf/hf_companions.hpp). The manifest lists them. No Kokkos.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/store/digest.hpp"

namespace sestina {

// Into that sub-folder, durable; none: no sub-folder.
void write_companions(const std::string& checkpoint, const std::vector<CompanionFile>&);
// Size and digest of what lies there, by name.
std::vector<ManifestFile> list_companions(const std::string& checkpoint);
// Those that the manifest lists, each with its digest. Error(bad_data).
std::vector<CompanionFile> read_companions(const std::string& checkpoint, const Manifest&);

// Sizes, and that nothing else lies there; then digests. Error(bad_data).
void check_companion_sizes(const std::string& checkpoint, const Manifest&);
void check_companions(const std::string& checkpoint, const Manifest&, const Poll& poll = {});

// Member "companions" of the manifest. Strict, as all of it.
nlohmann::ordered_json companions_json(const std::vector<ManifestFile>&);
std::vector<ManifestFile> read_companion_list(const nlohmann::json& list, const std::string& where);

}  // namespace sestina

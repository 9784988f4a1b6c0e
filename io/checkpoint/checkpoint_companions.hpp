// Small files that a checkpoint carries in addition to its tensors, byte for byte, in one sub-folder: those of a
// Hugging Face folder that belong to the model (io/hf/hf_companions.hpp). The manifest lists them. No Kokkos.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/store/digest.hpp"

namespace sestina {

// Writes files into that sub-folder, durably; makes no sub-folder for none.
void write_companions(const std::string& checkpoint, const std::vector<CompanionFile>&);
// Returns size and digest of the files that lie there, by name.
std::vector<ManifestFile> list_companions(const std::string& checkpoint);
// Reads the files that the manifest lists, and checks their digests. Error(bad_data).
std::vector<CompanionFile> read_companions(const std::string& checkpoint, const Manifest&);

// The first checks sizes, and that nothing else lies there; the second checks digests. Error(bad_data).
void check_companion_sizes(const std::string& checkpoint, const Manifest&);
void check_companions(const std::string& checkpoint, const Manifest&, const Poll& poll = {});

// Write and read the member "companions" of the manifest. Reading is strict, as for all of it.
nlohmann::ordered_json companions_json(const std::vector<ManifestFile>&);
std::vector<ManifestFile> read_companion_list(const nlohmann::json& list, const std::string& where);

}  // namespace sestina

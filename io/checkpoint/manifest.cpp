#include "io/checkpoint/manifest.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/manifest_json.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;

constexpr const char* kManifestSchema = "sestina-checkpoint";

}  // namespace

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto* files : {&manifest.files, &manifest.companions})
    for (const ManifestFile& file : *files) bytes += file.size;
  return bytes;
}

std::string manifest_text(const Manifest& manifest) {
  nlohmann::ordered_json object{{"schema", kManifestSchema},          {"version", kManifestVersion},
                                {"step", manifest.run.step},          {"serial", manifest.serial},
                                {"layout", layout_json(manifest)},    {"run", run_json(manifest.run)},
                                {"files", files_json(manifest.files)}};
  if (!manifest.companions.empty()) object["companions"] = companions_json(manifest.companions);
  object["tensors"] = tensors_json(manifest.tensors, manifest.files);
  return sealed_text(object);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const json object = parse_sealed(text, where);
  Members members(object, where);
  const std::string schema = members.text("schema");
  if (schema != kManifestSchema)
    fail(ExitCode::bad_data, "{}: schema is \"{}\"; expected \"{}\"", where, schema, kManifestSchema);
  const std::int64_t version = members.count("version");
  if (version != kManifestVersion)
    fail(ExitCode::bad_data, "{}: schema version {}, this program reads version {}", where, version, kManifestVersion);
  Manifest manifest;
  const std::int64_t step = members.count("step");
  manifest.serial = static_cast<std::uint64_t>(members.count("serial"));
  read_layout(members.get("layout"), manifest, where + ": layout");
  manifest.run = read_run(members.get("run"), step, where + ": run");
  manifest.files = read_files(members.list("files"), where);
  const bool has_global = std::any_of(manifest.files.begin(), manifest.files.end(),
                                      [](const ManifestFile& file) { return file.name == "global.h5"; });
  if (!has_global || static_cast<std::int64_t>(manifest.files.size()) != manifest.ranks + 1)
    fail(ExitCode::bad_data, "{}: lists {} files; expected global.h5 and one shard for each of {} ranks", where,
         manifest.files.size(), manifest.ranks);
  if (members.has("companions")) manifest.companions = read_companion_list(members.list("companions"), where);
  manifest.tensors = read_tensors(members.list("tensors"), manifest.files, where);
  for (const ManifestTensor& tensor : manifest.tensors) check_tiling(tensor, where);
  members.finish();
  return manifest;
}

}  // namespace sestina

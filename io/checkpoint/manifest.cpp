#include "io/checkpoint/manifest.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint_companions.hpp"
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

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxRanks = 100000;

// Old checkpoints of one rank say only `ranks`.
void read_layout(const json& object, Manifest& manifest, const std::string& where) {
  Members members(object, where);
  manifest.ranks = members.count("ranks", kMaxRanks);
  manifest.dp = manifest.ranks;
  if (members.has("dp")) {
    manifest.dp = members.count("dp", kMaxRanks);
    manifest.tp = members.count("tp", kMaxRanks);
    manifest.pp = members.count("pp", kMaxRanks);
  }
  members.finish();
  if (manifest.dp * manifest.tp * manifest.pp != manifest.ranks)
    fail(ExitCode::bad_data, "{}: dp {} x tp {} x pp {} are not {} ranks (one shard each)", where, manifest.dp,
         manifest.tp, manifest.pp, manifest.ranks);
}

RunState read_run(const json& object, std::int64_t step, const std::string& where) {
  Members members(object, where);
  RunState run;
  run.step = step;
  run.sample = members.word("sample");
  run.tokens = members.word("tokens");
  run.seed = members.word("seed");
  run.loss = members.number_or_null("loss");
  run.instruction_set = members.text("instruction_set");
  run.tokenizer_digest = members.text("tokenizer_digest");
  run.deck = members.text("deck");
  run.extra = members.text("extra");
  members.finish();
  return run;
}

ordered_json layout_json(const Manifest& manifest) {
  return {{"ranks", manifest.ranks}, {"dp", manifest.dp}, {"tp", manifest.tp}, {"pp", manifest.pp}};
}

ordered_json run_json(const RunState& run) {
  return {{"sample", run.sample},
          {"tokens", run.tokens},
          {"seed", run.seed},
          {"loss", run.loss},
          {"instruction_set", run.instruction_set},
          {"tokenizer_digest", run.tokenizer_digest},
          {"deck", run.deck},
          {"extra", run.extra}};
}

}  // namespace sestina

// `sestina checkpoint convert`: the same state in another number of shards.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "app/command/verbs.hpp"
#include "app/start/run_dir.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_convert.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"

namespace fs = std::filesystem;

namespace sestina {

int run_checkpoint_convert(const CheckpointConvertArguments& arguments) {
  const std::string source =
      find_checkpoint(arguments.checkpoint, [](const std::string& line) { spdlog::warn("{}", line); });
  const CheckpointReader reader(source, false);  // before a folder is made for what cannot be used
  const Manifest from = load_manifest(source);
  const RunDir run_dir(arguments.run_dir);
  const Saved saved = convert_checkpoint(reader, arguments.run_dir, arguments.shards);
  if (!fs::exists(fs::path(arguments.run_dir) / "deck.resolved.toml")) run_dir.write_deck(from.run.deck);
  if (arguments.json) {
    const nlohmann::ordered_json object = {{"from", source},
                                           {"path", saved.path},
                                           {"step", from.run.step},
                                           {"from_shards", from.ranks},
                                           {"shards", arguments.shards},
                                           {"tensors", from.tensors.size()},
                                           {"bytes", saved.bytes}};
    std::puts(object.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    fmt::print("{}: step {}, {} tensors in {} shards (before: {}), {:.1f} MB\n", saved.path, from.run.step,
               from.tensors.size(), arguments.shards, from.ranks, static_cast<double>(saved.bytes) * 1e-6);
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina

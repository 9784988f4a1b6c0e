// `sestina checkpoint list | verify`: shows what a run directory holds, and whether it is sound.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "app/start/run_dir.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_save.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"

namespace fs = std::filesystem;

namespace sestina {

namespace {

using nlohmann::ordered_json;

void print_json(const ordered_json& object) {
  std::puts(object.dump(1, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

ordered_json to_json(const CheckpointInfo& info) {
  ordered_json object = {
      {"path", info.path}, {"step", info.step}, {"bytes", info.bytes}, {"complete", info.problem.empty()}};
  object["problem"] = info.problem.empty() ? ordered_json() : ordered_json(info.problem);
  return object;
}

void print_table(const std::vector<CheckpointInfo>& list, const char* good) {
  for (const CheckpointInfo& info : list)
    fmt::print("step {:>8}  {:>10.1f} MB  {:<10}  {}\n", info.step, static_cast<double>(info.bytes) * 1e-6,
               info.problem.empty() ? good : "DAMAGED", info.problem.empty() ? info.path : info.problem);
}

bool is_run_directory(const std::string& path) { return fs::is_directory(fs::path(path) / "checkpoints"); }

std::vector<CheckpointInfo> checkpoints_of(const std::string& run_dir) {
  if (!fs::is_directory(run_dir)) fail(ExitCode::input_missing, "{}: no such run directory", run_dir);
  return list_checkpoints(run_dir);
}

// Returns the checkpoints that a path means, each with the problem that a full check finds.
std::vector<CheckpointInfo> verified(const std::string& path, bool full) {
  std::vector<CheckpointInfo> list;
  if (!is_run_directory(path)) {
    if (!fs::exists(fs::symlink_status(path)))
      fail(ExitCode::input_missing, "{}: no such checkpoint or run directory", path);
    list.push_back({path, 0, 0, verify_checkpoint(path, full)});
    if (list[0].problem.empty()) {
      const Manifest manifest = load_manifest(path);
      list[0].step = manifest.run.step;
      list[0].bytes = bytes_of(manifest);
    }
    return list;
  }
  list = list_checkpoints(path);
  if (list.empty()) fail(ExitCode::input_missing, "{}: this run directory has no checkpoint", path);
  for (CheckpointInfo& info : list)
    if (info.problem.empty()) info.problem = verify_checkpoint(info.path, full);
  return list;
}

}  // namespace

int run_checkpoint_list(const CheckpointListArguments& arguments) {
  const std::vector<CheckpointInfo> list = checkpoints_of(arguments.run_dir);
  if (arguments.json) {
    ordered_json entries = ordered_json::array();
    for (const CheckpointInfo& info : list) entries.push_back(to_json(info));
    print_json({{"run_dir", arguments.run_dir}, {"checkpoints", entries}});
  } else if (list.empty()) {
    fmt::print("{}: no checkpoint\n", arguments.run_dir);
  } else {
    print_table(list, "complete");
  }
  return static_cast<int>(ExitCode::done);
}

int run_checkpoint_verify(const CheckpointVerifyArguments& arguments) {
  const std::vector<CheckpointInfo> list = verified(arguments.path, arguments.full);
  std::size_t bad = 0;
  ordered_json entries = ordered_json::array();
  for (const CheckpointInfo& info : list) {
    bad += info.problem.empty() ? 0 : 1;
    entries.push_back(to_json(info));
  }
  if (arguments.json)
    print_json({{"path", arguments.path}, {"full", arguments.full}, {"checkpoints", entries}});
  else
    print_table(list, "ok");
  if (bad > 0) fail(ExitCode::bad_data, "{}: {} of {} checkpoints are not usable", arguments.path, bad, list.size());
  return static_cast<int>(ExitCode::done);
}

// `sestina checkpoint convert`: writes the same state in another number of shards.
int run_checkpoint_convert(const CheckpointConvertArguments& arguments) {
  const std::string source =
      find_checkpoint(arguments.checkpoint, [](const std::string& line) { spdlog::warn("{}", line); });
  const CheckpointReader reader(source, false);  // opened before a folder is made for it
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

#include "app/train/start_checkpoint.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "app/start/deck_layers.hpp"
#include "core/deck/options.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

bool holds_checkpoints(const std::string& folder) {
  std::error_code ignored;
  return fs::is_directory(fs::path(folder) / "checkpoints", ignored);
}

}  // namespace

std::string find_run_dir(const TrainArguments& arguments) {
  if (!arguments.run_dir.empty()) return arguments.run_dir;
  if (arguments.deck.empty()) fail(ExitCode::usage, "train: neither a deck (-i) nor a run directory (-d) was given");
  Deck deck = layered_deck(arguments.deck);
  const RunOptions run = RunOptions::read(deck);
  return run.dir.empty() ? "runs/" + run.name : run.dir;
}

bool names_checkpoint(const TrainArguments& arguments) {
  return !arguments.resume.empty() && arguments.resume != "auto" && arguments.resume != "latest";
}
std::string find_start_checkpoint(const TrainArguments& arguments, const std::string& run_dir,
                                  std::vector<std::string>& warnings, const Poll& poll) {
  if (arguments.resume.empty()) return "";
  if (names_checkpoint(arguments)) {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(arguments.resume, ignored)))
      fail(ExitCode::input_missing, "-r {}: no such checkpoint folder", arguments.resume);
    if (!holds_checkpoints(arguments.resume)) return arguments.resume;
  }
  const std::string where = names_checkpoint(arguments) ? arguments.resume : run_dir;  // -r RUN_DIR: its newest
  const auto warn = [&warnings](const std::string& line) {
    spdlog::warn("{}", line);
    warnings.push_back(line);
  };
  const std::string found = newest_complete(where, false, warn, poll, true);
  if (!found.empty()) return found;
  if (!list_checkpoints(where).empty())
    fail(ExitCode::bad_data, "-r {}: {} holds checkpoints, but none is complete; see `sestina checkpoint list {}`",
         arguments.resume, where, where);
  if (arguments.resume == "auto") return "";
  fail(ExitCode::input_missing, "-r {}: {} holds no checkpoint", arguments.resume, where);
}

std::string glance_at_checkpoint(const TrainArguments& arguments) try {
  if (arguments.resume.empty()) return "";
  const std::string where = names_checkpoint(arguments) ? arguments.resume : find_run_dir(arguments);
  if (names_checkpoint(arguments) && !holds_checkpoints(where)) {
    CheckpointReader(where, Verify::opened);
    return where;
  }
  for (const CheckpointInfo& info : list_checkpoints(where))
    if (info.problem.empty()) return info.path;
  return "";
} catch (const std::exception&) {
  return "";
}

bool has_optimizer_state(const CheckpointReader& reader) {
  return std::any_of(reader.entries().begin(), reader.entries().end(),
                     [](const auto& entry) { return entry.path.starts_with("/optimizer/"); });
}

}  // namespace sestina

#include "io/checkpoint/checkpoint_list.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

namespace fs = std::filesystem;

ListedCheckpoint look_at(const std::string& path, std::int64_t step) {
  ListedCheckpoint listed;
  listed.info.path = path;
  listed.info.step = step;
  try {
    const Manifest manifest = load_manifest(path);
    check_sizes(path, manifest);
    listed.info.step = manifest.run.step;
    listed.info.bytes = bytes_of(manifest);
    listed.serial = manifest.serial;
  } catch (const Error& error) {
    listed.info.problem = error.what();
  }
  return listed;
}

// Returns the message of a check that fails, "" when it passes.
template <class Check>
std::string problem_of(const Check& check) {
  try {
    check();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// A damaged checkpoint has no serial: it counts as saved just after the newest complete one of a lower step.
void guess_serials(std::vector<ListedCheckpoint>& list) {
  for (ListedCheckpoint& damaged : list) {
    if (damaged.info.problem.empty()) continue;
    for (const ListedCheckpoint& other : list)
      if (other.info.problem.empty() && other.info.step < damaged.info.step)
        damaged.serial = std::max(damaged.serial, other.serial);
  }
}

// Returns what is wrong with the link checkpoints/latest, "" if nothing is.
std::string latest_problem(const fs::path& folder) {
  std::error_code error;
  const fs::path link = folder / "latest";
  if (!fs::is_symlink(fs::symlink_status(link, error)) || fs::exists(link, error)) return "";
  return fmt::format("{}: points to {}, which does not exist", link.string(), fs::read_symlink(link, error).string());
}

}  // namespace

std::vector<ListedCheckpoint> list_with_serials(const std::string& run_dir) {
  std::vector<ListedCheckpoint> list;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir + "/checkpoints", error)) {
    const std::int64_t step = step_of_folder(entry.path().filename().string());
    if (step >= 0 && entry.is_directory(error)) list.push_back(look_at(entry.path().string(), step));
  }
  guess_serials(list);
  std::sort(list.begin(), list.end(), [](const ListedCheckpoint& a, const ListedCheckpoint& b) {
    return a.serial != b.serial ? a.serial > b.serial : a.info.step > b.info.step;
  });
  return list;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& run_dir) {
  std::vector<CheckpointInfo> list;
  for (ListedCheckpoint& listed : list_with_serials(run_dir)) list.push_back(std::move(listed.info));
  return list;
}

std::string verify_checkpoint(const std::string& checkpoint, bool full, const Poll& poll) {
  return problem_of([&] {
    const Manifest manifest = load_manifest(checkpoint);
    check_digests(checkpoint, manifest, poll);
    if (full) check_datasets(checkpoint, manifest);
  });
}

std::string verify_part(const std::string& checkpoint, int part, int parts, bool full, const Poll& poll) {
  if (parts == 1) return verify_checkpoint(checkpoint, full, poll);
  SESTINA_REQUIRE(0 <= part && part < parts, "part {} of {}", part, parts);
  return problem_of([&] {
    const Manifest manifest = load_manifest(checkpoint);
    if (part == 0) check_extra_files(checkpoint, manifest);
    if (part == 0) check_companions(checkpoint, manifest, poll);
    for (auto i = static_cast<std::size_t>(part); i < manifest.files.size(); i += static_cast<std::size_t>(parts)) {
      check_file(checkpoint, manifest, i, poll);
      if (full && manifest.files[i].name != "global.h5") check_shard(checkpoint, manifest, i);
    }
  });
}

std::string newest_complete(const std::string& run_dir, bool full, const std::function<void(const std::string&)>& warn,
                            const Poll& poll, bool finite) {
  const std::string link = latest_problem(run_dir + "/checkpoints");
  if (!link.empty() && warn) warn(link);
  for (const CheckpointInfo& info : list_checkpoints(run_dir)) {
    std::string problem = info.problem.empty() ? verify_checkpoint(info.path, full, poll) : info.problem;
    if (problem.empty() && finite)
      problem = problem_of([&] { check_finite(info.path, load_manifest(info.path), poll); });
    if (problem.empty()) return info.path;
    if (warn) warn(fmt::format("checkpoint of step {} is not used: {}", info.step, problem));
  }
  return "";
}

std::string find_checkpoint(const std::string& path, const std::function<void(const std::string&)>& warn) {
  if (!fs::is_directory(fs::path(path) / "checkpoints")) return path;
  const std::string found = newest_complete(path, false, warn);
  if (found.empty()) fail(ExitCode::bad_data, "{}: no complete checkpoint in this run directory", path);
  return found;
}

std::string Retention::name_of(const std::string& checkpoint) {
  std::error_code ignored;
  const fs::path path = fs::canonical(checkpoint, ignored);  // "latest" is a link
  return ignored ? fs::path(checkpoint).filename().string() : path.filename().string();
}

void Retention::resumed_from(const std::string& checkpoint) {
  base_ = name_of(checkpoint);
  good_[base_] = true;
}

void Retention::saved(const std::string& checkpoint) {
  const std::string name = name_of(checkpoint);
  saved_.insert(name);
  good_[name] = true;
}

bool Retention::is_good(const std::string& checkpoint) {
  const auto [known, is_new] = good_.try_emplace(name_of(checkpoint), false);
  if (!is_new) return known->second;
  const std::string problem = verify_checkpoint(checkpoint, false);
  if (!problem.empty()) spdlog::warn("{} is damaged and does not count as kept: {}", checkpoint, problem);
  known->second = problem.empty();
  return known->second;
}

void Retention::prune(const std::string& run_dir, int keep, std::int64_t keep_every) {
  if (keep <= 0) return;
  std::vector<ListedCheckpoint> list = list_with_serials(run_dir);
  const auto place = [this](const ListedCheckpoint& listed) {
    const std::string name = name_of(listed.info.path);
    return saved_.contains(name) ? 0 : name == base_ ? 1 : 2;
  };
  std::stable_sort(list.begin(), list.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  int complete = 0;
  for (const ListedCheckpoint& listed : list) {
    if (complete < keep) {
      complete += listed.info.problem.empty() && is_good(listed.info.path) ? 1 : 0;
      continue;
    }
    const bool milestone = keep_every > 0 && listed.info.step % keep_every == 0 && listed.info.problem.empty();
    if (milestone) continue;
    try {
      delete_checkpoint(listed.info.path);
    } catch (const Error& error) {
      spdlog::warn("{}", error.what());
    }
  }
}

}  // namespace sestina

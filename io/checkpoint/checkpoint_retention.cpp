#include "io/checkpoint/checkpoint_retention.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_list.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

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

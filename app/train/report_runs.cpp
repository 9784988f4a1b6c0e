#include "app/train/report_runs.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/start/run_dir.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

std::string text_of(const fs::path& path) {  // "" when there is none
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns nothing for a deck of another version, or one whose Hugging Face folder has gone.
std::optional<std::int64_t> parameters_of(const std::string& resolved, const std::string& folder) try {
  if (resolved.empty()) return std::nullopt;
  Deck deck;
  deck.add_text(resolved, "deck.resolved.toml", folder);
  return parameter_count(Options::read(deck).model);
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

std::vector<ReportRun> read_runs(const std::vector<std::string>& folders) {
  std::vector<ReportRun> runs;
  for (const std::string& folder : folders) {
    ReportRun run;
    run.running = run_dir_in_use(folder);
    run.history = read_history(folder);
    run.history.stalls = read_stalls(folder);
    run.label = run.history.name;
    run.deck = text_of(fs::path(folder) / "deck.resolved.toml");
    run.parameters = parameters_of(run.deck, folder);
    runs.push_back(std::move(run));
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {  // folders of the same name are told apart by their paths
    const auto same = [&](const ReportRun& other) { return other.history.name == runs[r].history.name; };
    if (std::count_if(runs.begin(), runs.end(), same) > 1) runs[r].label = folders[r];
  }
  return runs;
}

std::string report_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %Z", &local)};
}

}  // namespace sestina

// `sestina report`: the metrics of one or more runs as one page.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/verbs.hpp"
#include "io/output_file.hpp"
#include "io/report.hpp"

namespace sestina {
namespace {

std::string text_of(const std::filesystem::path& path) {  // "" when there is none
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Folders of the same name are told apart by their paths.
void make_names_differ(std::vector<RunHistory>& runs, const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const RunHistory& run : runs) names.push_back(run.name);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (std::count(names.begin(), names.end(), names[r]) > 1) runs[r].name = folders[r];
  }
}

}  // namespace

int run_report(const ReportArguments& arguments) {
  if (arguments.run_dirs.empty()) fail(ExitCode::usage, "report: which run directory?");
  std::vector<RunHistory> runs;
  std::vector<std::string> decks;
  std::vector<std::string> folders;
  for (const std::string& folder : arguments.run_dirs) {
    if (!std::filesystem::exists(std::filesystem::path(folder) / "metrics.jsonl")) {
      fmt::print(stderr, "sestina: warning: {}: no metrics.jsonl, so no run: left out\n", folder);
      continue;
    }
    folders.push_back(folder);
    runs.push_back(read_history(folder));
    decks.push_back(text_of(std::filesystem::path(folder) / "deck.resolved.toml"));
  }
  if (runs.empty())
    fail(ExitCode::input_missing, "{}: no metrics.jsonl here; a run directory holds one",
         fmt::join(arguments.run_dirs, ", "));
  make_names_differ(runs, folders);
  const std::string path = arguments.output.empty() ? (std::filesystem::path(folders[0]) / "report.html").string() : arguments.output;
  OutputFile file(path);
  file.write(report_html(runs, decks));
  file.commit();
  fmt::print("{}\n", path);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina

// `sestina report`: writes the metrics of one or more runs as one page, or as one table.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "app/command/verbs.hpp"
#include "app/start/run_dir.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "io/report/report.hpp"
#include "io/store/output_file.hpp"

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

// With `report runs/*`, paths that are no runs are left out and named.
std::vector<std::string> folders_with_metrics(const std::vector<std::string>& given) {
  std::vector<std::string> folders;
  for (const std::string& folder : given) {
    std::error_code ignored;
    if (fs::exists(fs::path(folder) / "metrics.jsonl", ignored))
      folders.push_back(folder);
    else if (given.size() > 1)
      fmt::print(stderr, "sestina: warning: {}: no metrics.jsonl; skipped\n", folder);
  }
  if (folders.empty())
    fail(ExitCode::input_missing, "report: {}: no metrics.jsonl; a run directory holds one",
         given.size() == 1 ? given[0] : fmt::format("{} folders", given.size()));
  return folders;
}

std::vector<ReportRun> read_runs(const std::vector<std::string>& folders) {
  std::vector<ReportRun> runs;
  for (const std::string& folder : folders) {
    ReportRun run;
    run.running = run_dir_in_use(folder);
    run.history = read_history(folder);
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

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %Z", &local)};
}

// Writes the page until the runs have ended or a signal comes; the last page does not load itself again.
void watch(const std::string& path, const std::vector<std::string>& folders, double interval) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  timespec wait{};
  wait.tv_sec = static_cast<std::time_t>(interval);
  wait.tv_nsec = static_cast<long>((interval - static_cast<double>(wait.tv_sec)) * 1e9);
  for (bool first = true, ended = false; !ended; first = false) {
    auto runs = read_runs(folders);
    ended = std::none_of(runs.begin(), runs.end(), [](const ReportRun& run) { return run.running; });
    write_output_file(path, report_html(runs, {now_text(), ended ? 0.0 : interval}));
    if (first) fmt::print("{}\n", path), std::fflush(stdout);
    if (ended || sigtimedwait(&signals, nullptr, &wait) < 0) continue;
    write_output_file(path, report_html(read_runs(folders), {now_text(), 0}));
    ended = true;
  }
}

}  // namespace

int run_report(const ReportArguments& arguments) {
  if (arguments.run_dirs.empty()) fail(ExitCode::usage, "report: no run directory given");
  const auto folders = folders_with_metrics(arguments.run_dirs);
  const char* name = arguments.csv ? "report.csv" : "report.html";
  const std::string path = arguments.output.empty() ? (fs::path(folders[0]) / name).string() : arguments.output;
  if (arguments.watch) {
    watch(path, folders, arguments.interval);
    return static_cast<int>(ExitCode::done);
  }
  const auto runs = read_runs(folders);
  write_output_file(path, arguments.csv ? report_csv(runs) : report_html(runs, {now_text(), 0}));
  fmt::print("{}\n", path);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina

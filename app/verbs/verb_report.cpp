// `sestina report`: writes the metrics of one or more runs as one page, or as one table, or compares what they came to.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "app/command/verbs.hpp"
#include "app/train/report_runs.hpp"
#include "io/report/comparison.hpp"
#include "io/report/report.hpp"
#include "io/store/output_file.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

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
    write_output_file(path, report_html(runs, {report_time(), ended ? 0.0 : interval}));
    if (first) fmt::print("{}\n", path), std::fflush(stdout);
    if (ended || sigtimedwait(&signals, nullptr, &wait) < 0) continue;
    write_output_file(path, report_html(read_runs(folders), {report_time(), 0}));
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
  if (arguments.compare) {
    const Comparison comparison = compare_runs(runs, {arguments.target, arguments.sigma});
    fmt::print("{}", arguments.json ? comparison_json(comparison) + "\n" : comparison_text(comparison));
    return static_cast<int>(ExitCode::done);
  }
  write_output_file(path, arguments.csv ? report_csv(runs) : report_html(runs, {report_time(), 0}));
  fmt::print("{}\n", path);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina

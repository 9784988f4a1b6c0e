// `sestina sweep`: trains a deck at every point of a grid, each in a run directory of its own, and finds the best. A
// sweep that was stopped or killed goes on where it was.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>

#include "app/command/verbs.hpp"
#include "app/start/run_dir.hpp"
#include "app/sweep/child_runs.hpp"
#include "app/sweep/sweep_plan.hpp"
#include "app/sweep/sweep_results.hpp"
#include "app/train/report_runs.hpp"
#include "io/report/report.hpp"
#include "io/store/output_file.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

// The place of this process in an array of a batch system; count 1 without one.
struct ArrayTask {
  std::size_t index = 0, count = 1;
};

ArrayTask array_task() {
  const auto number = [](const char* name, long fallback) {
    const char* text = std::getenv(name);
    return text == nullptr ? fallback : std::strtol(text, nullptr, 10);
  };
  const long count = number("SLURM_ARRAY_TASK_COUNT", 1), step = std::max(number("SLURM_ARRAY_TASK_STEP", 1), 1L);
  const long index = (number("SLURM_ARRAY_TASK_ID", 0) - number("SLURM_ARRAY_TASK_MIN", 0)) / step;
  if (count < 2 || index < 0 || index >= count) return {};
  return {static_cast<std::size_t>(index), static_cast<std::size_t>(count)};
}

// Makes the folder of the sweep and keeps what sweep it is; another one there is an error.
void keep_sweep(const Sweep& sweep) {
  const std::string path = sweep.dir + "/sweep.toml";
  std::error_code ignored;
  if (fs::exists(sweep.dir + "/metrics.jsonl", ignored) || fs::exists(sweep.dir + "/checkpoints", ignored))
    fail(ExitCode::cannot_create, "{}: a run directory; a sweep needs a folder of its own, choose another with -d",
         sweep.dir);
  std::ifstream file(path, std::ios::binary);
  const std::string stored{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) return write_output_file(path, sweep.text);
  const std::string difference = sweep_difference(stored, sweep.text);
  if (!difference.empty())
    fail(ExitCode::bad_data, "{}: another sweep lies there, choose another folder with -d:{}", sweep.dir, difference);
}

std::string loss_text(const SweepResult& result) {
  return std::isfinite(result.loss) ? fmt::format("{:.4f}", result.loss) : "diverged";
}

// Ends the sweep where the runs were stopped or one of them failed.
int round_code(const std::vector<SweepRun>& runs, const ChildEnds& ends) {
  const auto stopped = [](int code) {
    return code == static_cast<int>(ExitCode::stopped_saved) || code == static_cast<int>(ExitCode::stopped_unsaved);
  };
  if (ends.interrupted) return static_cast<int>(ExitCode::interrupted);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const int code = ends.codes[i];
    if (code <= 0 || code == static_cast<int>(ExitCode::diverged) || stopped(code)) continue;
    if (ends.stopped && code > static_cast<int>(ExitCode::diverged)) continue;  // ended by the signal itself
    const bool ours = code < static_cast<int>(ExitCode::diverged);
    const std::string said = console_error(runs[i].dir);
    fail(ours ? static_cast<ExitCode>(code) : ExitCode::internal, "sweep: {}: exit code {}: {}", runs[i].dir, code,
         said.empty() ? "see its console.txt" : said);
  }
  if (!ends.stopped && std::none_of(ends.codes.begin(), ends.codes.end(), stopped)) return 0;
  fmt::print(stderr, "sestina: the sweep stopped early; the same command goes on with it\n");
  return static_cast<int>(ExitCode::stopped_saved);
}

// Trains the runs of this task that have not finished; returns 0, or the code to end with. quiet: with --json nothing
// is said of their progress, since scripts often read both outputs as one.
int train_runs(const Sweep& sweep, const std::vector<SweepRun>& all, ArrayTask task, bool quiet) {
  std::vector<SweepRun> runs;
  std::vector<ChildRun> children;
  for (std::size_t i = task.index; i < all.size(); i += task.count) {
    if (read_result(sweep, all[i]).finished) continue;
    runs.push_back(all[i]);
    children.push_back({command_of(sweep, all[i]), all[i].dir, sweep.decks[all[i].point].ranks > 1});
  }
  std::size_t done = 0;
  const auto ended = [&](std::size_t i, int code) {
    const SweepResult result = read_result(sweep, runs[i]);
    if (result.finished && !quiet)
      fmt::print(stderr, "{}: {} ({} of {})\n", runs[i].dir, loss_text(result), ++done, runs.size());
    return code == 0 || code == static_cast<int>(ExitCode::diverged);
  };
  return round_code(runs, run_children(children, sweep.jobs, ended));
}

std::vector<SweepResult> read_results(const Sweep& sweep, const std::vector<SweepRun>& runs) {
  std::vector<SweepResult> results;
  for (const SweepRun& run : runs) results.push_back(read_result(sweep, run));
  return results;
}

void write_files(const Sweep& sweep, const SweepSummary& summary) {
  write_output_file(sweep.dir + "/sweep.json", sweep_json(sweep, summary) + "\n");
  if (summary.any_best())
    write_output_file(sweep.dir + "/best.toml", sweep.decks[summary.ranked.front().point].resolved);
  std::vector<std::string> folders;
  for (const SweepResult& result : summary.runs) folders.push_back(result.run.dir);
  write_output_file(sweep.dir + "/sweep.html",
                    report_html(read_runs(folders), {report_time(), 0, sweep_charts(sweep, summary)}));
}

int tell(const Sweep& sweep, const SweepSummary& summary, bool json) {
  write_files(sweep, summary);
  if (json)
    fmt::print("{}\n", sweep_json(sweep, summary));
  else
    fmt::print("{}", sweep_table(sweep, summary));
  for (const SweepEdge& edge : summary.edges)
    if (!json) fmt::print(stderr, "sestina: warning: {}\n", edge_text(edge));
  if (!summary.any_best()) fail(ExitCode::diverged, "sweep: {}: every point diverged", sweep.dir);
  if (!json) fmt::print("best: {0}/best.toml; all runs: {0}/sweep.html\n", sweep.dir);
  return static_cast<int>(ExitCode::done);
}

std::vector<std::size_t> all_points(const Sweep& sweep) {
  std::vector<std::size_t> points(sweep.points.size());
  std::iota(points.begin(), points.end(), std::size_t{0});
  return points;
}

int run_grid(const Sweep& sweep, ArrayTask task, bool json) {
  const auto runs = runs_of(sweep, all_points(sweep));
  if (const int code = train_runs(sweep, runs, task, json); code != 0) return code;
  auto results = read_results(sweep, runs);
  const auto missing = std::count_if(results.begin(), results.end(), [](const auto& r) { return !r.finished; });
  if (missing == 0) return tell(sweep, summarize_sweep(sweep, std::move(results), 0), json);
  fmt::print(stderr,
             "sestina: {} of {} runs are left to other tasks; the last of them, or a later call, tells the best\n",
             missing, runs.size());
  return static_cast<int>(ExitCode::done);
}

int run_halving(const Sweep& sweep, bool json) {
  std::vector<std::size_t> points = all_points(sweep);
  std::vector<SweepResult> results;
  std::size_t first = 0;
  for (const SweepRung& rung :
       halving_rungs(points.size(), sweep.options.keep, sweep.options.rungs, sweep.decks.front().steps)) {
    if (!results.empty()) {
      const auto ranked = ranked_points(sweep, results.data() + first, results.data() + results.size());
      points.clear();
      for (std::size_t i = 0; i < rung.points; ++i) points.push_back(ranked[i].point);
    }
    if (!json) fmt::print(stderr, "{} of {} points, {} updates\n", rung.points, sweep.points.size(), rung.steps);
    const auto runs = runs_of(sweep, points, rung.steps);
    if (const int code = train_runs(sweep, runs, {}, json); code != 0) return code;
    first = results.size();
    for (SweepResult& result : read_results(sweep, runs)) results.push_back(std::move(result));
  }
  return tell(sweep, summarize_sweep(sweep, std::move(results), first), json);
}

}  // namespace

int run_sweep(const SweepArguments& arguments) {
  const Sweep sweep = plan_sweep(arguments);
  const ArrayTask task = array_task();
  if (sweep.options.halving && task.count > 1)
    fail(ExitCode::bad_deck,
         "sweep.method: \"halving\" is one process, got task {} of {}, allowed \"grid\" in an array", task.index + 1,
         task.count);
  keep_sweep(sweep);
  std::unique_ptr<RunDir> lock;  // the tasks of an array share the folder
  if (task.count == 1) lock = std::make_unique<RunDir>(sweep.dir);
  setenv("OMP_PROC_BIND", "false", 0);  // runs side by side would bind their threads to the same cores
  setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
  if (!arguments.json)
    fmt::print(stderr, "{}: {} points, {} seeds, {} at once, {} threads each\n", sweep.dir, sweep.points.size(),
               sweep.seeds.size(), sweep.jobs, sweep.threads);
  return sweep.options.halving ? run_halving(sweep, arguments.json) : run_grid(sweep, task, arguments.json);
}

}  // namespace sestina

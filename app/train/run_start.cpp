#include "app/train/run_start.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <sstream>

#include "app/start/run_deck.hpp"
#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "io/store/digest.hpp"
#include "kernels/base/host_name.hpp"
#include "kernels/base/version.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace fs = std::filesystem;

namespace sestina {

namespace {

bool holds_checkpoints(const std::string& folder) {
  std::error_code ignored;
  return fs::is_directory(fs::path(folder) / "checkpoints", ignored);
}

}  // namespace

std::string precision_line(TrainOptions::Precision precision, bool on_host) {
  if (precision != TrainOptions::Precision::bf16) return "fp32";
  return on_host ? std::string(to_text(bf16_way())) : "bf16";
}

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
  const std::string where = names_checkpoint(arguments) ? arguments.resume : run_dir;  // the newest of -r RUN_DIR
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

namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

RunLine run_line(const RunStart& start, Runtime& runtime) {
  RunLine line;
  line.step = start.step;
  line.version = std::string(version().text);
  line.commit = std::string(version().commit);
  line.build = fmt::format("{} {}", version().build_type, version().compiler);
  line.device = start.device;
  line.command_line = start.command_line;
  line.deck_digest = digest128(start.deck.data(), start.deck.size());
  line.started = utc_now();
  line.hosts = runtime.world().all_gather(host_name());
  line.ranks = runtime.size();
  line.threads = start.threads;
  return line;
}

std::vector<std::string> start_lines(const Options& options, const RunStart& start, const PlannedRun& run,
                                     std::uint64_t available) {
  const ParallelOptions& p = options.parallel;
  const int pipeline_ranks = run.plan.pipe.ranks, ranks = p.dp * p.tp * pipeline_ranks;
  std::vector<std::string> lines = {
      fmt::format("sestina {} ({}), {} {}", version().text, version().commit, ranks, ranks == 1 ? "rank" : "ranks"),
      fmt::format("model      {}, {} layers, {} parameters, {}", name(options.model.family),
                  options.model.num_hidden_layers, parameter_count(options.model), start.precision),
      fmt::format("optimizer  {}, peak lr {}, batch {} x {} tokens in micro-batches of {}", options.optimizer.kind,
                  options.optimizer.lr, options.train.global_batch, options.data.sequence_length,
                  options.train.micro_batch),
      fmt::format("layout     {} x {} x {} ranks (data x tensor x pipeline){}", p.dp, p.tp, pipeline_ranks,
                  p.pp > 1 ? fmt::format(", {} stages, {}", p.pp, name(p.schedule)) : ""),
      fmt::format("device     {}, {} {} per rank", start.device, start.threads,
                  start.threads == 1 ? "thread" : "threads"),
      fmt::format("memory     {:.2f} GB planned, {:.2f} GB available", gb(run.memory.total()), gb(available))};
  std::istringstream sources(start.data);
  for (std::string source; std::getline(sources, source);)
    if (!source.empty()) lines.push_back("data       " + source);
  return lines;
}

std::string learning_rate_jump(const Options& stored, const Options& now, std::int64_t step) {
  if (stored.run.steps == now.run.steps || stored.schedule.steps == now.schedule.steps) return "";
  const double before = Schedule(stored.schedule).factor(step + 1) * stored.optimizer.lr,
               after = Schedule(now.schedule).factor(step + 1) * now.optimizer.lr;
  constexpr double worth_a_word = 1e-3;  // a part of the larger rate
  if (std::abs(before - after) <= worth_a_word * std::max(before, after)) return "";
  return fmt::format(
      "the learning rate of step {} is {:.3g}, with the checkpoint's schedule it would be {:.3g}: the schedule's "
      "length is {} steps now, it was {}; schedule.steps={} keeps it",
      step + 1, after, before, now.schedule.steps, stored.schedule.steps, stored.schedule.steps);
}

}  // namespace sestina

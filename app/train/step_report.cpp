#include "app/train/step_report.hpp"

#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace sestina {

namespace {

// These variables are set by mpirun and srun for each task, even for one alone.
constexpr const char* launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};

}  // namespace

bool shows_progress(const std::string& wanted, int file) {
  if (wanted != "auto") return wanted == "always";
  const char* term = std::getenv("TERM");
  const bool plain = term == nullptr || std::string_view(term) == "dumb" || *term == '\0';
  const bool launched = std::any_of(std::begin(launchers), std::end(launchers),
                                    [](const char* name) { return std::getenv(name) != nullptr; });
  return ::isatty(file) == 1 && !plain && !launched;
}

int terminal_columns(int file) {
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int said = columns ? std::atoi(columns) : 0;
  return said > 0 ? said : 80;
}

void append_duration(fmt::memory_buffer& text, double seconds) {
  const auto s = static_cast<long long>(seconds + 0.5);
  auto out = std::back_inserter(text);
  if (s >= 3600)
    fmt::format_to(out, "{}h{:02}m", s / 3600, s % 3600 / 60);
  else if (s >= 60)
    fmt::format_to(out, "{}m{:02}s", s / 60, s % 60);
  else
    fmt::format_to(out, "{}s", s);
}

void append_progress(fmt::memory_buffer& text, const Progress& p, int columns) {
  constexpr std::size_t least_bar = 7, longest_bar = 32;                 // columns, with the brackets
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 1));  // a full line would break
  std::size_t fits = 0, begin = text.size();
  const auto keep = [&] {  // keeps what was written, if it fits so far
    if (text.size() - begin <= room) fits = text.size() - begin;
  };
  fmt::format_to(std::back_inserter(text), "{}/{}", p.step, p.steps);
  keep();
  fmt::format_to(std::back_inserter(text), "  loss {:.3f}", p.loss);
  keep();
  text.append(std::string_view("  ETA "));
  append_duration(text, p.seconds_left);
  keep();
  fmt::format_to(std::back_inserter(text), "  {:.0f} tokens/s", p.tokens_per_s);
  keep();
  text.resize(begin + fits);
  if (fits + 1 + least_bar > room) return;
  const std::size_t width = std::min(longest_bar, room - fits - 1) - 2;
  const auto done = static_cast<std::size_t>(static_cast<double>(width) * static_cast<double>(p.step) /
                                             static_cast<double>(std::max<std::int64_t>(p.steps, 1)));
  text.append(std::string_view(" ["));
  for (std::size_t i = 0; i < width; ++i) text.push_back(i < done ? '=' : i == done ? '>' : ' ');
  text.push_back(']');
}

std::uint64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

namespace {

std::optional<double> where_finite(double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

EnergyNumbers energy_numbers(const RankStep& ranks) {
  return {where_finite(ranks.package), where_finite(ranks.memory), where_finite(ranks.device), ranks.processor};
}

DriftNumbers drift_numbers(const RankStep& ranks) {
  DriftNumbers numbers{static_cast<std::int64_t>(ranks.refreshed_sides)};
  if (ranks.basis_drift >= 0) numbers.largest = ranks.basis_drift;
  return numbers;
}

LoadNumbers load_numbers(const LargestLoad& load) {
  if (load.layer < 0) return {};
  return {load.over_mean, load.layer};
}

}  // namespace

StepReport::StepReport(const Options& options, Metrics& metrics)
    : options_(options), metrics_(metrics), bar_(options.progress && !options.quiet) {
  text_.reserve(512);
}

void StepReport::step(std::int64_t step, std::uint64_t tokens, double loss, double norm, double lr,
                      std::int64_t skipped, const RankStep& ranks, const StageNumbers& stages) {
  if (options_.quiet) return;
  const auto seconds = [&ranks](Phase phase) { return ranks.seconds[static_cast<std::size_t>(phase)]; };
  TrainLine line;
  line.step = step;
  line.tokens = tokens;
  line.loss = loss;
  line.grad_norm = norm;
  line.lr = lr;
  line.step_s = ranks.seconds.back();
  line.tokens_per_s = static_cast<double>(options_.tokens_per_step) / line.step_s;
  line.data_s = seconds(Phase::data);
  line.forward_backward_s = seconds(Phase::forward_backward);
  line.reduce_s = seconds(Phase::reduce);
  line.optimizer_s = seconds(Phase::optimizer);
  line.refresh_wait_s = seconds(Phase::refresh);
  line.gather_s = seconds(Phase::gather);
  line.skipped_steps = skipped;
  line.memory_peak_bytes = static_cast<std::uint64_t>(ranks.memory_peak_bytes);
  line.preconditioner_age_max = static_cast<std::int64_t>(ranks.preconditioner_age);
  if (ranks.preconditioners > 0) line.preconditioner_age_mean = ranks.preconditioner_ages / ranks.preconditioners;
  line.tflops = options_.flops_per_token * line.tokens_per_s * 1e-12;
  line.energy_j = where_finite(ranks.energy);
  line.energy = energy_numbers(ranks);
  line.step_tokens = options_.tokens_per_step;
  sum_.add(ranks);
  if (options_.peak_tflops) line.mfu = line.tflops / *options_.peak_tflops;
  line.staleness = stages.staleness;
  line.drift = stages.drift;
  line.replicas = stages.replicas;
  line.tiers = stages.tiers;
  if (stages.load) line.load = load_numbers(*stages.load);
  if (options_.workers) line.workers = WorkerNumbers{ranks.refresh_copies, ranks.refresh_workers};
  if (options_.drift) line.refreshes = drift_numbers(ranks);
  line.cosine = stages.cosine;
  ages_.clear();
  for (const StageAges& of : stages.ages)
    ages_.push_back({static_cast<std::int64_t>(of.max), of.count > 0 ? of.sum / of.count : 0});
  metrics_.train(line, ages_);

  ++interval_steps_;
  ++session_steps_;
  interval_seconds_ += line.step_s;
  session_seconds_ += line.step_s;
  for (std::size_t i = 0; i < interval_phases_.size(); ++i) interval_phases_[i] += ranks.seconds[i];
  if (step % options_.every == 0 || step == options_.steps || session_steps_ == 1) log_line(line);
  if (bar_) bar(line);
}

double StepReport::seconds_left(const TrainLine& line) const {
  return static_cast<double>(options_.steps - line.step) * session_seconds_ / static_cast<double>(session_steps_);
}

std::array<int, 3> step_percent(double data, double forward_backward, double whole) {
  const auto percent = [whole](double seconds) { return static_cast<int>(100 * seconds / whole + 0.5); };
  const int first = std::min(percent(data), 100), second = std::min(percent(forward_backward), 100 - first);
  return {first, second, 100 - first - second};
}

void append_log_line(fmt::memory_buffer& text, const LogLine& line) {
  constexpr std::size_t columns = 100;
  const std::size_t begin = text.size();
  auto out = std::back_inserter(text);
  fmt::format_to(out, "step {:>6}/{}  loss {:.4f}  grad_norm {:.3f}  lr {:.2e}  {:.3g} s  ", line.step, line.steps,
                 line.loss, line.grad_norm, line.lr, line.step_s);
  if (line.tokens_per_s < 1e6)
    fmt::format_to(out, "{:.0f} tok/s", line.tokens_per_s);
  else
    fmt::format_to(out, "{:.3g}M tok/s", line.tokens_per_s * 1e-6);
  fmt::format_to(out, "  {}+{}+{}%  ETA ", line.percent[0], line.percent[1], line.percent[2]);
  append_duration(text, line.seconds_left);
  for (std::size_t i = text.size() - 1; i > begin && text.size() - begin > columns; --i) {
    if (text[i] != ' ' || text[i - 1] != ' ') continue;
    std::copy(text.data() + i + 1, text.data() + text.size(), text.data() + i);
    text.resize(text.size() - 1);
  }
}

void StepReport::log_line(const TrainLine& line) {
  clear_bar();
  if (session_steps_ == 1)
    spdlog::info("(percentages of a step: data + forward and backward + optimizer step with communication)");
  text_.clear();
  const auto seconds = [&](Phase phase) { return interval_phases_[static_cast<std::size_t>(phase)]; };
  const double step_s = interval_seconds_ / static_cast<double>(interval_steps_);
  append_log_line(text_, {line.step, options_.steps, line.loss, line.grad_norm, line.lr, step_s,
                          static_cast<double>(options_.tokens_per_step) / step_s, seconds_left(line),
                          step_percent(seconds(Phase::data), seconds(Phase::forward_backward), interval_seconds_)});
  spdlog::info(std::string_view(text_.data(), text_.size()));
  interval_steps_ = 0;
  interval_seconds_ = 0;
  interval_phases_.fill(0);
}

void StepReport::bar(const TrainLine& line) {
  const double now = now_seconds();
  if (now - last_bar_ < 0.1 && line.step != options_.steps) return;  // ten times a second is enough for an eye
  last_bar_ = now;
  text_.clear();
  text_.push_back('\r');
  append_progress(text_, {line.step, options_.steps, line.loss, line.tokens_per_s, seconds_left(line)},
                  terminal_columns(STDOUT_FILENO));
  text_.append(std::string_view("\033[K"));
  if (line.step == options_.steps) text_.push_back('\n');
  std::fwrite(text_.data(), 1, text_.size(), stdout);
  std::fflush(stdout);
}

void StepReport::energy(std::int64_t step, const std::string& domains) {
  if (options_.quiet || session_steps_ == 0) return;
  const auto tokens = options_.tokens_per_step * static_cast<std::uint64_t>(session_steps_);
  const Metrics::EnergyLine line{where_finite(sum_.energy), energy_numbers(sum_), session_seconds_, tokens, domains};
  clear_bar();
  if (line.energy_j)
    spdlog::info("energy     {:.4g} J, {:.3g} W, {:.3g} J per token: {}", *line.energy_j,
                 *line.energy_j / session_seconds_, *line.energy_j / static_cast<double>(tokens), domains);
  else
    spdlog::info("energy     not known ({}); in its place {:.4g} s of processors, user and system, of all ranks",
                 domains, sum_.processor);
  metrics_.energy(step, line);
}

void StepReport::clear_bar() {
  if (!bar_) return;
  std::fputs("\r\033[K", stdout);
  std::fflush(stdout);
}

}  // namespace sestina

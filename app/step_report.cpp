#include "app/step_report.hpp"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>

namespace sestina {
namespace {

// "1h02m", "3m20s", "45s"
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

}  // namespace

std::uint64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

RankStep of_all_ranks(const std::vector<RankStep>& ranks) {
  RankStep all = *std::max_element(ranks.begin(), ranks.end(), [](const RankStep& a, const RankStep& b) {
    return a.seconds.back() < b.seconds.back();
  });
  for (const RankStep& rank : ranks) {
    all.memory_peak_bytes = std::max(all.memory_peak_bytes, rank.memory_peak_bytes);
    all.preconditioner_age = std::max(all.preconditioner_age, rank.preconditioner_age);
  }
  return all;
}

StepReport::StepReport(const Setting& setting, Metrics& metrics)
    : setting_(setting), metrics_(metrics), terminal_(isatty(STDOUT_FILENO) != 0) {
  text_.reserve(512);
}

void StepReport::step(std::int64_t step, std::uint64_t tokens, double loss, double norm, double lr,
                      std::int64_t skipped, const RankStep& ranks) {
  if (setting_.quiet) return;
  const auto seconds = [&ranks](Phase phase) { return ranks.seconds[static_cast<std::size_t>(phase)]; };
  TrainLine line;
  line.step = step;
  line.tokens = tokens;
  line.loss = loss;
  line.grad_norm = norm;
  line.lr = lr;
  line.step_s = ranks.seconds.back();
  line.tokens_per_s = static_cast<double>(setting_.tokens_per_step) / line.step_s;
  line.data_s = seconds(Phase::data);
  line.forward_backward_s = seconds(Phase::forward_backward);
  line.reduce_s = seconds(Phase::reduce);
  line.optimizer_s = seconds(Phase::optimizer);
  line.refresh_wait_s = seconds(Phase::refresh);
  line.gather_s = seconds(Phase::gather);
  line.skipped_steps = skipped;
  line.memory_peak_bytes = static_cast<std::uint64_t>(ranks.memory_peak_bytes);
  line.preconditioner_age_max = static_cast<std::int64_t>(ranks.preconditioner_age);
  line.tflops = setting_.flops_per_token * line.tokens_per_s * 1e-12;
  if (setting_.peak_tflops) line.mfu = line.tflops / *setting_.peak_tflops;
  metrics_.train(line);

  ++interval_steps_;
  ++session_steps_;
  interval_seconds_ += line.step_s;
  session_seconds_ += line.step_s;
  for (std::size_t i = 0; i < interval_phases_.size(); ++i) interval_phases_[i] += ranks.seconds[i];
  if (step % setting_.every == 0 || step == setting_.steps || session_steps_ == 1) log_line(line);
  if (terminal_) bar(line);
}

void StepReport::log_line(const TrainLine& line) {
  clear_bar();
  text_.clear();
  const double tokens_per_s =
      static_cast<double>(setting_.tokens_per_step) * static_cast<double>(interval_steps_) / interval_seconds_;
  const auto share = [&](Phase phase) {
    return 100 * interval_phases_[static_cast<std::size_t>(phase)] / interval_seconds_;
  };
  fmt::format_to(std::back_inserter(text_),
                 "step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {:.3f} TFLOP/s  "
                 "data {:.0f}%  fwd+bwd {:.0f}%  optimizer {:.0f}%  reduce+gather {:.0f}%  left ",
                 line.step, setting_.steps, line.loss, line.grad_norm, line.lr, tokens_per_s,
                 setting_.flops_per_token * tokens_per_s * 1e-12, share(Phase::data), share(Phase::forward_backward),
                 share(Phase::optimizer) + share(Phase::refresh), share(Phase::reduce) + share(Phase::gather));
  append_duration(
      text_, static_cast<double>(setting_.steps - line.step) * session_seconds_ / static_cast<double>(session_steps_));
  spdlog::info(std::string_view(text_.data(), text_.size()));
  interval_steps_ = 0;
  interval_seconds_ = 0;
  interval_phases_.fill(0);
}

void StepReport::bar(const TrainLine& line) {
  const double now = now_seconds();
  if (now - last_bar_ < 0.1 && line.step != setting_.steps) return;  // ten times a second is enough for an eye
  last_bar_ = now;
  constexpr int width = 30;
  const int done = static_cast<int>(width * line.step / (setting_.steps > 0 ? setting_.steps : 1));
  text_.clear();
  text_.append(std::string_view("\r["));
  for (int i = 0; i < width; ++i) text_.push_back(i < done ? '=' : i == done ? '>' : ' ');
  fmt::format_to(std::back_inserter(text_), "] {}/{}  loss {:.3f}  {:.0f} tokens/s  left ", line.step, setting_.steps,
                 line.loss, line.tokens_per_s);
  append_duration(
      text_, static_cast<double>(setting_.steps - line.step) * session_seconds_ / static_cast<double>(session_steps_));
  text_.append(std::string_view("\033[K"));
  if (line.step == setting_.steps) text_.push_back('\n');
  std::fwrite(text_.data(), 1, text_.size(), stdout);
  std::fflush(stdout);
}

void StepReport::clear_bar() {
  if (!terminal_ || setting_.quiet) return;
  std::fputs("\r\033[K", stdout);
  std::fflush(stdout);
}

}  // namespace sestina

// What a step tells the world: phase times, the log line per interval, the progress bar on a terminal, the metrics
// line. Buffers are reused: after the first lines nothing here allocates. No Kokkos.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/report/metrics.hpp"
#include "parallel/plan/rank_report.hpp"

namespace sestina {

// Seconds since an arbitrary start; monotonic.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds up the seconds of each phase of one step. `enter` ends the phase before.
class PhaseClock {
 public:
  void start() {
    seconds_.fill(0);
    begin_ = last_ = now_seconds();
  }
  void end(Phase phase) {
    const double now = now_seconds();
    seconds_[static_cast<std::size_t>(phase)] += now - last_;
    last_ = now;
  }
  // Books seconds of one phase under another that went on inside it.
  void move(Phase from, Phase to, double seconds) {
    seconds_[static_cast<std::size_t>(from)] -= seconds;
    seconds_[static_cast<std::size_t>(to)] += seconds;
  }
  // Waits for other ranks inside of the passes and the update (Executor::take_seconds) as phases of their own; and what
  // of the last update a device did under the passes, as part of an update: a step shows that of the one before.
  void move_waits(double gather, double reduce, double homes, double update) {
    move(Phase::forward_backward, Phase::optimizer, update);
    move(Phase::optimizer, Phase::gather, homes);
    move(Phase::forward_backward, Phase::gather, gather);
    move(Phase::forward_backward, Phase::reduce, reduce);
  }
  double total() const { return last_ - begin_; }
  // Seconds by phase and, last, of all.
  std::array<double, static_cast<std::size_t>(Phase::count) + 1> seconds() const {
    std::array<double, static_cast<std::size_t>(Phase::count) + 1> all{};
    std::copy(seconds_.begin(), seconds_.end(), all.begin());
    all.back() = total();
    return all;
  }
  double operator[](Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::array<double, static_cast<std::size_t>(Phase::count)> seconds_{};
  double begin_ = 0, last_ = 0;
};

// What a line says by pipeline stage, as in TrainLine; empty: nothing.
struct StageNumbers {
  std::span<const double> staleness = {}, drift = {}, cosine = {};
  std::span<const StageAges> ages = {};
  std::optional<ReplicaNumbers> replicas = {};
};
// Largest resident set of this process so far, bytes.
std::uint64_t peak_memory_bytes();

// Percentages of a step of `whole` seconds, which is not 0: data, forward and backward, and what is left; 100 together
// although each is rounded.
std::array<int, 3> step_percent(double data, double forward_backward, double whole);

// What a log line says; percent: data, forward and backward, optimizer step with communication.
struct LogLine {
  std::int64_t step = 0, steps = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_s = 0, tokens_per_s = 0, seconds_left = 0;
  std::array<int, 3> percent{};
};
// In 100 columns, with the numbers of a large run too: where they are long, the gaps between them are narrow.
void append_log_line(fmt::memory_buffer&, const LogLine&);

class StepReport {
 public:
  struct Options {
    std::int64_t steps = 0, every = 10;  // total updates; updates between log lines
    std::uint64_t tokens_per_step = 0;
    double flops_per_token = 0;
    std::optional<double> peak_tflops;  // for MFU; null when not known
    bool workers = false;               // refresh preconditioners: lines say what that took
    bool quiet = false;                 // says nothing: all ranks but the first
    bool progress = true;               // the bar, if there is something to show it on
  };
  StepReport(const Options&, Metrics&);

  // One completed update. Writes the metrics line always, the log line every `every` updates and on the last.
  void step(std::int64_t step, std::uint64_t tokens, double loss, double norm, double lr, std::int64_t skipped,
            const RankStep&, const StageNumbers& = {});
  void clear_bar();  // before anything else is printed

 private:
  void log_line(const TrainLine&);
  void bar(const TrainLine&);
  double seconds_left(const TrainLine&) const;

  Options options_;
  Metrics& metrics_;
  fmt::memory_buffer text_;
  std::vector<StageAge> ages_;  // by stage
  bool bar_;
  std::int64_t interval_steps_ = 0, session_steps_ = 0;
  double interval_seconds_ = 0, session_seconds_ = 0, last_bar_ = 0;
  std::array<double, static_cast<std::size_t>(Phase::count)> interval_phases_{};
};

}  // namespace sestina

// What a step tells the world: the progress bar on a terminal, the log line per interval, the metrics line. No
// Kokkos.
#pragma once
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/report/metrics.hpp"
#include "parallel/step/step_exchange.hpp"

namespace sestina {

// The progress bar: when there is one, and how it fits.

// wanted: "auto", "always" or "never". auto: the output is a terminal that understands control characters (TERM is not
// "dumb") and no launcher stands between: mpirun makes a terminal of a log file.
bool shows_progress(const std::string& wanted, int file);

int terminal_columns(int file);  // of the terminal, else COLUMNS, else 80

struct Progress {
  std::int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_s = 0, seconds_left = 0;
};
// One line for a terminal of so many columns, without line feed: what does not fit is left away from the right, the bar
// itself takes what is left over.
void append_progress(fmt::memory_buffer&, const Progress&, int columns);

void append_duration(fmt::memory_buffer&, double seconds);  // "1h02m", "3m20s", "45s"

// What a step tells the world: the log line per interval, the progress bar on a terminal, the metrics
// line. Buffers are reused: after the first lines nothing here allocates.

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

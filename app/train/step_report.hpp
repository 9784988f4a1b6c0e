// The report of a step to the user: the progress bar on a terminal, the log line per interval, the metrics line. No
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

// The progress bar is shown on terminals and fits their width.

// Returns whether the bar is shown. wanted: "auto", "always" or "never". With auto it is shown where the output is a
// terminal that understands control characters (TERM is not "dumb") and no launcher stands between: mpirun makes a
// terminal of a log file.
bool shows_progress(const std::string& wanted, int file);

int terminal_columns(int file);  // those of the terminal, else COLUMNS, else 80

struct Progress {
  std::int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_s = 0, seconds_left = 0;
};
// Appends one line for a terminal of so many columns, without line feed: what does not fit is left out from the right,
// and the bar itself takes the rest.
void append_progress(fmt::memory_buffer&, const Progress&, int columns);

void append_duration(fmt::memory_buffer&, double seconds);  // "1h02m", "3m20s", "45s"

// Buffers of the report are reused: after the first lines nothing here allocates.

// The numbers of a line by pipeline stage, as in TrainLine; empty: the line says nothing of it.
struct StageNumbers {
  std::span<const double> staleness = {}, drift = {}, cosine = {};
  std::span<const StageAges> ages = {};
  std::optional<ReplicaNumbers> replicas = {};
  std::optional<TierNumbers> tiers = {};
  std::optional<LargestLoad> load = {};
};
// Returns the largest resident set that this process has had so far, in bytes.
std::uint64_t peak_memory_bytes();
double processor_seconds();  // user and system, that all threads of this process have worked so far

// Returns percentages of a step of `whole` seconds, which is not 0: data, forward and backward, and the rest; they sum
// to 100 although each is rounded.
std::array<int, 3> step_percent(double data, double forward_backward, double whole);

// The contents of a log line; percent: data, forward and backward, optimizer step with communication.
struct LogLine {
  std::int64_t step = 0, steps = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_s = 0, tokens_per_s = 0, seconds_left = 0;
  std::array<int, 3> percent{};
};
// Appends the line in 100 columns, with the numbers of a large run too: where they are long, the gaps between them are
// narrow.
void append_log_line(fmt::memory_buffer&, const LogLine&);

class StepReport {
 public:
  struct Options {
    std::int64_t steps = 0, every = 10;  // total updates; updates between log lines
    std::uint64_t tokens_per_step = 0;
    double flops_per_token = 0;
    std::optional<double> peak_tflops;  // for MFU; null when not known
    bool workers = false;               // workers refresh preconditioners: lines say what that took
    bool drift = false;                 // drift starts refreshes: lines say how many, and how far it was
    bool quiet = false;                 // reports nothing: true on all ranks but the first
    bool progress = true;               // shows the bar, if there is a terminal for it
  };
  StepReport(const Options&, Metrics&);

  // Reports one completed update. Writes the metrics line always, the log line every `every` updates and on the last.
  void step(std::int64_t step, std::uint64_t tokens, double loss, double norm, double lr, std::int64_t skipped,
            const RankStep&, const StageNumbers& = {});
  // Logs and writes the energy of all steps so far; domains: which of its parts are counted (EnergyCounters).
  void energy(std::int64_t step, const std::string& domains);
  void clear_bar();  // call it before anything else is printed

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
  RankStep sum_;  // of the energies
  double interval_seconds_ = 0, session_seconds_ = 0, last_bar_ = 0;
  std::array<double, static_cast<std::size_t>(Phase::count)> interval_phases_{};
};

}  // namespace sestina

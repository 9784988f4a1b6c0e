// Reads back metrics.jsonl of a run, with rewinds applied: after a resume, later lines take the place of earlier ones.
// Lines and keys that this version does not know are no errors, nor are those that are missing. No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/report/metrics.hpp"

namespace sestina {

// The values of each tensor at some steps; NaN where a line does not name the tensor.
struct TensorHistory {
  static constexpr std::array<const char*, 3> quantities = {"weight_rms", "update_rms", "spectral_norm"};
  std::vector<std::string> names;  // in the model's order
  std::vector<std::int64_t> steps;
  std::array<std::vector<std::vector<double>>, quantities.size()> values;  // [quantity][name][step]
};

struct RunHistory {
  struct Validation {
    std::int64_t step;
    double loss;
    std::optional<double> bits_per_byte;
  };
  struct Checkpoint {
    std::int64_t step;
    std::string path, error;  // error: "" where it was written
    double seconds, bytes;
    bool there;  // still in the run directory
  };
  struct Note {
    std::int64_t step;
    std::string kind, text;  // kind: event or rewind
  };
  struct Loads {
    std::int64_t step;
    std::vector<double> optimizer_s, planned;  // by rank
  };
  struct Stages {
    std::int64_t step;
    std::vector<double> staleness, drift, cosine;  // by stage of an asynchronous pipeline; what a line lacks is empty
  };
  struct Updates {
    std::int64_t step;
    std::vector<Metrics::UpdateLine> tensors;
  };
  struct Rotations {
    std::int64_t step;
    std::vector<Metrics::RotationLine> tensors;
  };
  // What blocks of state did in the updates of trace.json: the stalls of one on one rank.
  struct Stall {
    std::string block;
    std::int64_t rank = 0, waits = 0;
    double seconds = 0, longest = 0, bytes_read = 0, bytes_written = 0;
  };
  std::string name;                                        // folder name
  std::vector<std::pair<std::string, std::string>> start;  // the newest `run` line: key and value as text
  std::vector<TrainLine> train;
  // The other numbers of the train lines, one for each line (NaN: not in it); "x_by_stage" as x_stage_0, x_stage_1, ...
  std::map<std::string, std::vector<double>> more;
  std::vector<Validation> validation;
  std::vector<Checkpoint> checkpoints;
  std::vector<Note> notes;
  std::vector<Loads> loads;
  std::vector<Stages> stages;
  std::vector<Updates> updates;
  std::vector<Rotations> rotations;
  std::vector<Stall> stalls;  // the ten blocks for which updates waited longest, longest first: read_stalls()
  TensorHistory tensors;
  std::size_t bad_lines = 0;  // lines that could not be parsed, as a cut last line
  bool diverged = false;      // the run diverged, and was not resumed since
};

// Reads a run; Error(input_missing) when the folder has no metrics.jsonl.
RunHistory read_history(const std::string& run_dir);
// Reads RunHistory::stalls from the run's trace.json, which is long and of which reports alone show something. A trace
// that is not there or is not whole tells less, which is no error.
std::vector<RunHistory::Stall> read_stalls(const std::string& run_dir);

// The report shows of a run its series against step, tokens and time, thinned curves, and a line of the summary.
enum class Abscissa { step, tokens, time };  // time: the sum of step_s

// Return the abscissa of every train line, and of every validation line, which has that of the train line of the same
// step or before.
std::vector<double> abscissa(const RunHistory& run, Abscissa kind);
std::vector<double> validation_abscissa(const RunHistory& run, Abscissa kind);

// A series of the train lines by its key, one value per line (NaN: not known). Series that are always 0 or unknown are
// left out.
struct NamedSeries {
  std::string name;
  std::vector<double> values;
};
std::vector<NamedSeries> all_series(const RunHistory& run);

// Thinning takes groups of so many neighbours that at most `most` points are left. `last` is for abscissae: the value
// of the last one, of the first group that of its first one, so that both ends stay. A group without a finite value
// stays a gap.
enum class Thinning { mean, least, most, last };
std::size_t group_size(std::size_t points, std::size_t most);
std::vector<double> thinned(const std::vector<double>& values, std::size_t group, Thinning);

struct Summary {
  std::int64_t steps = 0, skipped = 0;
  std::uint64_t tokens = 0, memory_peak_bytes = 0;
  double seconds = 0;
  std::optional<double> loss, validation_loss, best_validation_loss, bits_per_byte, step_s, tokens_per_s, tflops, mfu,
      energy_j, energy_efficiency, processor_s;
};
// Summarizes a run. loss: mean of the last ten; step_s, tokens_per_s, tflops, mfu: medians; energy_j and processor_s:
// the sum, where every line knows it. energy_efficiency needs other runs (page.hpp).
Summary summarize(const RunHistory& run);

}  // namespace sestina

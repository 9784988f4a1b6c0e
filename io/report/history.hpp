// metrics.jsonl of a run read back, with rewinds applied: after a resume, later lines take the place of earlier ones.
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

// Values of each tensor at some steps; a NaN where a line does not name the tensor.
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
    std::string path, error;  // error: empty where it was written
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
  std::string name;                                        // folder name
  std::vector<std::pair<std::string, std::string>> start;  // of the newest `run` line: key and value as text
  std::vector<TrainLine> train;
  // Other numbers of the train lines, one for each (NaN: not in that line); "x_by_stage" as x_stage_0, x_stage_1, ...
  std::map<std::string, std::vector<double>> more;
  std::vector<Validation> validation;
  std::vector<Checkpoint> checkpoints;
  std::vector<Note> notes;
  std::vector<Loads> loads;
  std::vector<Stages> stages;
  TensorHistory tensors;
  std::size_t bad_lines = 0;  // could not be parsed: a cut last line
  bool diverged = false;      // ended so, and was not resumed since
};

// Error(input_missing) when the folder has no metrics.jsonl.
RunHistory read_history(const std::string& run_dir);

}  // namespace sestina

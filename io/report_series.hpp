// What the report shows of a run: smoothed and thinned curves, the split of the step time, a line of the summary. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/metrics.hpp"

namespace sestina {

enum class Abscissa { step, tokens, time };  // time: the sum of step_s

// For every train line its abscissa; the validation lines take theirs from the train line of the same step or before.
std::vector<double> abscissa(const RunHistory& run, Abscissa kind);
std::vector<double> validation_abscissa(const RunHistory& run, Abscissa kind);

// Mean over `reach` values on either side; near the start fewer, as many on both sides, so that its slope is not flattened.
// A gap stays a gap and does not count.
std::vector<double> smoothed(const std::vector<double>& values, std::size_t reach);

// At most `most` points, each the mean of a group of neighbours at the last one's x (the first: at its first one's), so
// that the ends stay; a group without a finite value stays a gap.
void thin_out(std::vector<double>& x, std::vector<double>& y, std::size_t most);

struct StepSplit {
  static constexpr std::size_t kParts = 6;
  static constexpr const char* kNames[kParts] = {"forward and backward", "optimizer", "refresh", "data", "reduce and gather",
                                                 "rest"};
  std::vector<double> part[kParts];  // seconds, one value per train line
};
StepSplit step_split(const RunHistory& run);

struct Summary {
  std::int64_t steps = 0, skipped = 0;
  std::uint64_t tokens = 0, memory_peak_bytes = 0;
  double seconds = 0;
  std::optional<double> loss, validation_loss, best_validation_loss, bits_per_byte, tokens_per_s, tflops, mfu;
};
// loss: mean of the last ten; tokens_per_s, tflops, mfu: medians.
Summary summarize(const RunHistory& run);

}  // namespace sestina

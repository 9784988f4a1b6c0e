// What the report shows of a run: its series against step, tokens and time, thinned curves, a line of the summary.
// No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/report/history.hpp"

namespace sestina {

enum class Abscissa { step, tokens, time };  // time: the sum of step_s

// For every train line its abscissa; the validation lines take theirs from the train line of the same step or before.
std::vector<double> abscissa(const RunHistory& run, Abscissa kind);
std::vector<double> validation_abscissa(const RunHistory& run, Abscissa kind);

// Every series of the train lines by its key, one value per line (NaN: not known); without those that are never
// anything but 0 or unknown.
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
      energy_j, energy_efficiency;
};
// loss: mean of the last ten; step_s, tokens_per_s, tflops, mfu: medians; energy_j: the sum, where every line knows it.
// energy_efficiency needs other runs (energy_loss.hpp).
Summary summarize(const RunHistory& run);

}  // namespace sestina

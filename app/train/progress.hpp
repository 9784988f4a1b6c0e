// The progress bar: when there is one, and how it fits. No Kokkos.
#pragma once
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace sestina {

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

}  // namespace sestina

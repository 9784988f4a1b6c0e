#include "app/train/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace sestina {
namespace {

// Set by mpirun and srun for each task, one alone too.
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
  constexpr std::size_t least_bar = 7, longest_bar = 32;                 // with its brackets
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 1));  // a full line would break
  std::size_t fits = 0, begin = text.size();
  const auto keep = [&] {  // what was written fits: so far
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

}  // namespace sestina

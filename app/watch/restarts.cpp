#include "app/watch/restarts.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace sestina {
namespace {

constexpr int most_starts = 3;
constexpr std::streamoff tail = 1 << 18;  // bytes: starts that fail at once write little

}  // namespace

std::string restart_problem(const std::string& text, std::int64_t step, const std::string& deck_digest) {
  int in_a_row = 0;
  bool counts = false, diverged = true;  // of the start that the lines belong to
  std::string end;                       // the words of the last one that diverged
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // cut by the begin of the text, or by a kill
    const std::string kind = json.value("kind", "");
    if (kind == "run") {
      counts = json.value("step", std::int64_t{-1}) == step && json.value("deck_digest", "") == deck_digest;
      if (!counts || !diverged) in_a_row = 0;
      diverged = false;
    } else if (kind == "event" && json.value("what", "") == "diverged" && counts) {
      const std::string detail = json.value("detail", "");
      in_a_row = detail == end ? in_a_row + 1 : 1;
      end = detail;
      diverged = true;
    }
  }
  if (!diverged || in_a_row < most_starts) return "";
  return fmt::format(
      "-r auto: the last {} starts from step {} with this deck ended in the same way, and another one would too: {}; "
      "change the deck (run.on_nonfinite, run.on_spike, schedule.lr), or start once more without -r auto",
      in_a_row, step, end);
}

std::string end_of_metrics(const std::string& run_dir) {
  std::ifstream file(run_dir + "/metrics.jsonl", std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(size > tail ? size - tail : 0);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace sestina

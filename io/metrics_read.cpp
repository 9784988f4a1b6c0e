// metrics.jsonl read back: a rewind line drops the train and validation lines behind its step, as a resume does them again.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "io/metrics.hpp"
#include "kernels/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;

double number(const json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? found->get<double>() : std::nan("");
}

std::optional<double> known(const json& line, const char* name) {
  const double value = number(line, name);
  return std::isnan(value) ? std::nullopt : std::optional<double>(value);
}

template <class T>
T integer(const json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number_integer() ? found->get<T>() : T{0};
}

std::string text(const json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

TrainLine train_line(const json& line) {
  TrainLine t;
  t.step = integer<std::int64_t>(line, "step");
  t.tokens = integer<std::uint64_t>(line, "tokens");
  t.loss = number(line, "loss");
  t.grad_norm = number(line, "grad_norm");
  t.lr = number(line, "lr");
  t.step_s = number(line, "step_s");
  t.tokens_per_s = number(line, "tokens_per_s");
  t.data_s = number(line, "data_s");
  t.forward_backward_s = number(line, "forward_backward_s");
  t.reduce_s = number(line, "reduce_s");
  t.optimizer_s = number(line, "optimizer_s");
  t.refresh_wait_s = number(line, "refresh_wait_s");
  t.gather_s = number(line, "gather_s");
  t.preconditioner_age_max = integer<std::int64_t>(line, "preconditioner_age_max");
  t.skipped_steps = integer<std::int64_t>(line, "skipped_steps");
  t.memory_peak_bytes = integer<std::uint64_t>(line, "memory_peak_bytes");
  t.tflops = number(line, "tflops");
  t.mfu = known(line, "mfu");
  t.energy_j = known(line, "energy_j");
  return t;
}

template <class Lines>
void drop_after(Lines& lines, std::int64_t step) {
  std::erase_if(lines, [&](const auto& line) { return line.step > step; });
}

void add(RunHistory& history, const json& line) {
  const std::string kind = text(line, "kind");
  const auto step = integer<std::int64_t>(line, "step");
  if (kind == "train") {
    history.train.push_back(train_line(line));
  } else if (kind == "val") {
    history.validation.push_back({step, number(line, "loss"), known(line, "bits_per_byte")});
  } else if (kind == "checkpoint") {
    const std::string error = text(line, "error");
    const std::string done = fmt::format("{}, {:.1f} MB in {:.2f} s", text(line, "path"), number(line, "bytes") / 1e6, number(line, "seconds"));
    history.notes.push_back({step, kind, error.empty() ? done : text(line, "path") + " failed: " + error});
  } else if (kind == "event") {
    const std::string detail = text(line, "detail");
    history.notes.push_back({step, kind, text(line, "what") + (detail.empty() ? "" : ": " + detail)});
  } else if (kind == "rewind") {
    const auto to = integer<std::int64_t>(line, "to_step");
    drop_after(history.train, to);
    drop_after(history.validation, to);
    history.notes.push_back({step, kind, fmt::format("resumed from step {}", to)});
  } else if (kind.empty()) {
    ++history.bad_lines;
  }
}

}  // namespace

RunHistory read_history(const std::string& run_dir) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "{}: there is no such file; a run directory holds one", path);
  RunHistory history;
  const auto folder = std::filesystem::weakly_canonical(run_dir);
  history.name = folder.filename().string();
  std::string text;
  while (std::getline(file, text)) {
    if (text.empty()) continue;
    const json line = json::parse(text, nullptr, false);
    if (line.is_object()) {
      add(history, line);
    } else {
      ++history.bad_lines;
    }
  }
  return history;
}

}  // namespace sestina

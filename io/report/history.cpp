#include "io/report/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;  // tensors stay in the model's order

double number(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number() ? found->get<double>() : std::nan("");
}

std::optional<double> known(const Json& line, const char* name) {
  const double value = number(line, name);
  return std::isnan(value) ? std::nullopt : std::optional<double>(value);
}

template <class T>
T integer(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_number_integer() ? found->get<T>() : T{0};
}

std::string text(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<double> numbers(const Json& line, const char* name) {
  std::vector<double> values;
  if (const auto found = line.find(name); found != line.end() && found->is_array())
    for (const Json& value : *found) values.push_back(value.is_number() ? value.get<double>() : std::nan(""));
  return values;
}

TrainLine train_line(const Json& line) {
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
  t.preconditioner_age_mean = number(line, "preconditioner_age_mean");
  t.skipped_steps = integer<std::int64_t>(line, "skipped_steps");
  t.memory_peak_bytes = integer<std::uint64_t>(line, "memory_peak_bytes");
  t.tflops = number(line, "tflops");
  t.mfu = known(line, "mfu");
  t.energy_j = known(line, "energy_j");
  return t;
}

const std::set<std::string, std::less<>> train_keys = {"step",
                                                       "tokens",
                                                       "loss",
                                                       "grad_norm",
                                                       "lr",
                                                       "step_s",
                                                       "tokens_per_s",
                                                       "data_s",
                                                       "reduce_s",
                                                       "gather_s",
                                                       "forward_backward_s",
                                                       "optimizer_s",
                                                       "refresh_wait_s",
                                                       "tflops",
                                                       "mfu",
                                                       "energy_j",
                                                       "time",
                                                       "preconditioner_age_max",
                                                       "preconditioner_age_mean",
                                                       "skipped_steps",
                                                       "cosine",
                                                       "memory_peak_bytes"};

// Returns a number, or the largest of an array.
double largest(const Json& value) {
  if (value.is_number()) return value.get<double>();
  double most = std::nan("");
  if (value.is_array())
    for (const Json& entry : value)
      if (entry.is_number()) most = std::fmax(most, entry.get<double>());
  return most;
}

void add_train(RunHistory& history, const Json& line) {
  const std::size_t at = history.train.size();
  history.train.push_back(train_line(line));
  if (line.contains("drift") || line.contains("cosine"))
    history.stages.push_back(
        {history.train.back().step, numbers(line, "staleness"), numbers(line, "drift"), numbers(line, "cosine")});
  const auto add = [&](const std::string& key, double value) {
    auto& values = history.more[key];
    values.resize(at, std::nan(""));
    values.push_back(value);
  };
  constexpr std::string_view by_stage = "_by_stage";
  for (const auto& [key, value] : line.items()) {
    if (train_keys.contains(key) || !(value.is_number() || value.is_array())) continue;
    if (!key.ends_with(by_stage) || !value.is_array()) {
      add(key, largest(value));
      continue;
    }
    const std::string name = key.substr(0, key.size() - by_stage.size());
    for (std::size_t i = 0; i < value.size(); ++i) add(fmt::format("{}_stage_{}", name, i), largest(value[i]));
  }
}

void add_tensors(TensorHistory& tensors, const Json& line) {
  const auto found = line.find("tensors");
  if (found == line.end() || !found->is_object()) return;
  const std::size_t at = tensors.steps.size();
  tensors.steps.push_back(integer<std::int64_t>(line, "step"));
  for (auto& quantity : tensors.values)
    for (auto& values : quantity) values.push_back(std::nan(""));
  std::size_t guess = 0;  // lines name the tensors in the same order
  for (const auto& [name, values] : found->items()) {
    std::size_t i = guess < tensors.names.size() && tensors.names[guess] == name
                        ? guess
                        : static_cast<std::size_t>(std::find(tensors.names.begin(), tensors.names.end(), name) -
                                                   tensors.names.begin());
    if (i == tensors.names.size()) {
      tensors.names.push_back(name);
      for (auto& quantity : tensors.values) quantity.emplace_back(at + 1, std::nan(""));
    }
    if (values.is_object())
      for (std::size_t q = 0; q < TensorHistory::quantities.size(); ++q)
        tensors.values[q][i][at] = number(values, TensorHistory::quantities[q]);
    guess = i + 1;
  }
}

void add_updates(RunHistory& history, const Json& line) {
  history.updates.push_back({integer<std::int64_t>(line, "step"), {}});
  const auto found = line.find("tensors");
  if (found == line.end() || !found->is_array()) return;
  for (const Json& tensor : *found) {
    if (!tensor.is_object()) continue;
    Metrics::UpdateLine update;
    update.pattern = text(tensor, "pattern");
    update.rule = text(tensor, "rule");
    update.split = text(tensor, "split");
    update.owner = text(tensor, "owner");
    update.calls = integer<std::int64_t>(tensor, "calls");
    update.orthogonality_defect = known(tensor, "orthogonality_defect");
    update.update_rms = number(tensor, "update_rms");
    update.update_ratio = number(tensor, "update_ratio");
    update.decay = number(tensor, "decay");
    update.layers = numbers(tensor, "layers");
    history.updates.back().tensors.push_back(std::move(update));
  }
}

// Adds a line, and what is largest and smallest of it to the series, at the train line of its step.
void add_rotations(RunHistory& history, const Json& line) {
  history.rotations.push_back({integer<std::int64_t>(line, "step"), {}});
  const auto found = line.find("tensors");
  if (found == line.end() || !found->is_array()) return;
  double norm = std::nan(""), defect = norm, most = norm, least = norm;
  for (const Json& tensor : *found) {
    if (!tensor.is_object()) continue;
    Metrics::RotationLine one;
    one.pattern = text(tensor, "pattern");
    one.layers = numbers(tensor, "layers");
    norm = std::fmax(norm, one.largest_q = number(tensor, "largest_q"));
    defect = std::fmax(defect, one.defect = number(tensor, "defect"));
    most = std::fmax(most, one.sigma_max = number(tensor, "sigma_max"));
    least = std::fmin(least, one.sigma_min = number(tensor, "sigma_min"));
    one.applied_defect = number(tensor, "applied_defect");
    one.sigma_rms = number(tensor, "sigma_rms");
    history.rotations.back().tensors.push_back(std::move(one));
  }
  const std::size_t lines = history.train.size();
  if (lines == 0 || history.train.back().step != history.rotations.back().step) return;
  for (const auto& [name, value] : {std::pair("rotation_norm", norm), std::pair("rotation_defect", defect),
                                    std::pair("sigma_max", most), std::pair("sigma_min", least)}) {
    history.more[name].resize(lines, std::nan(""));
    history.more[name].back() = value;
  }
}

template <class Lines>
void drop_after(Lines& lines, std::int64_t step) {
  std::erase_if(lines, [&](const auto& line) { return line.step > step; });
}

void rewind(RunHistory& history, std::int64_t step) {
  auto& train = history.train;  // in ascending order, since each rewind ends with this
  train.erase(std::find_if(train.begin(), train.end(), [&](const TrainLine& line) { return line.step > step; }),
              train.end());
  for (auto& [name, values] : history.more) values.resize(std::min(values.size(), train.size()));
  drop_after(history.validation, step);
  drop_after(history.loads, step);
  drop_after(history.stages, step);
  drop_after(history.updates, step);
  drop_after(history.rotations, step);
  TensorHistory& tensors = history.tensors;
  while (!tensors.steps.empty() && tensors.steps.back() > step) {
    tensors.steps.pop_back();
    for (auto& quantity : tensors.values)
      for (auto& values : quantity) values.pop_back();
  }
  history.diverged = false;
}

std::string shown_value(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string list, last;
  for (const Json& entry : value) {  // hosts by rank; neighbours are mostly equal
    const std::string text = shown_value(entry);
    if (!list.empty() && text == last) continue;
    list += (list.empty() ? "" : ", ") + text;
    last = text;
  }
  return list;
}

void add(RunHistory& history, const Json& line) {
  const std::string kind = text(line, "kind");
  const auto step = integer<std::int64_t>(line, "step");
  if (kind == "train") {
    add_train(history, line);
  } else if (kind == "val") {
    history.validation.push_back({step, number(line, "loss"), known(line, "bits_per_byte")});
  } else if (kind == "checkpoint") {
    history.checkpoints.push_back(
        {step, text(line, "path"), text(line, "error"), number(line, "seconds"), number(line, "bytes"), false});
  } else if (kind == "event") {
    const std::string what = text(line, "what"), detail = text(line, "detail");
    if (what == "diverged") history.diverged = true;
    history.notes.push_back({step, kind, what + (detail.empty() ? "" : ": " + detail)});
  } else if (kind == "rewind") {
    const auto to = integer<std::int64_t>(line, "to_step");
    rewind(history, to);
    history.notes.push_back({to, kind, fmt::format("resumed from step {}", to)});
  } else if (kind == "tensors") {
    add_tensors(history.tensors, line);
  } else if (kind == "updates") {
    add_updates(history, line);
  } else if (kind == "rotations") {
    add_rotations(history, line);
  } else if (kind == "energy") {
    std::erase_if(history.start, [](const auto& fact) { return fact.first == "energy"; });
    history.start.emplace_back("energy", text(line, "domains"));
  } else if (kind == "loads") {
    history.loads.push_back({step, numbers(line, "optimizer_s"), numbers(line, "planned")});
  } else if (kind == "run") {
    history.start.clear();
    for (const auto& [key, value] : line.items())
      if (key != "kind" && key != "step" && key != "time") history.start.emplace_back(key, shown_value(value));
  } else if (kind.empty()) {
    ++history.bad_lines;
  }
}

}  // namespace

RunHistory read_history(const std::string& run_dir) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "{}: no such file; a run directory holds one", path);
  RunHistory history;
  history.name = std::filesystem::weakly_canonical(run_dir).filename().string();
  std::string text;
  while (std::getline(file, text)) {
    if (text.empty()) continue;
    const Json line = Json::parse(text, nullptr, false);
    if (line.is_object()) {
      add(history, line);
    } else {
      ++history.bad_lines;
    }
  }
  for (auto& [name, values] : history.more) values.resize(history.train.size(), std::nan(""));
  for (auto& saved : history.checkpoints) {
    const auto folder = std::filesystem::path(run_dir) / "checkpoints" / std::filesystem::path(saved.path).filename();
    std::error_code ignored;
    saved.there = saved.error.empty() && std::filesystem::exists(folder / "manifest.json", ignored);
  }
  return history;
}

// Events of trace.json are a line each, the end of one after its begin.
std::vector<RunHistory::Stall> read_stalls(const std::string& run_dir) {
  std::map<std::pair<std::int64_t, std::string>, RunHistory::Stall> blocks;
  std::ifstream file(run_dir + "/trace.json", std::ios::binary);
  Json begin;
  for (std::string text; std::getline(file, text);) {
    if (text.find("\"cat\":\"state ") == std::string::npos) continue;
    if (text.ends_with(',')) text.pop_back();
    Json event = Json::parse(text, nullptr, false);
    if (!event.is_object()) continue;
    if (sestina::text(event, "ph") == "b") {
      begin = std::move(event);
      continue;
    }
    const std::string name = sestina::text(event, "name"), kind = sestina::text(event, "cat");
    if (!begin.is_object() || sestina::text(begin, "name") != name) continue;
    const auto rank = integer<std::int64_t>(event, "pid");
    RunHistory::Stall& block = blocks[{rank, name}];
    const double seconds = 1e-6 * (number(event, "ts") - number(begin, "ts"));
    const double bytes = begin.contains("args") ? number(begin["args"], "bytes") : 0;
    block.block = name;
    block.rank = rank;
    if (kind == "state read") block.bytes_read += bytes;
    if (kind == "state write") block.bytes_written += bytes;
    if (kind != "state wait") continue;
    ++block.waits;
    block.seconds += seconds;
    block.longest = std::max(block.longest, seconds);
  }
  std::vector<RunHistory::Stall> stalls;
  for (const auto& entry : blocks)
    if (entry.second.waits > 0) stalls.push_back(entry.second);
  std::stable_sort(stalls.begin(), stalls.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  constexpr std::size_t shown = 10;
  stalls.resize(std::min(stalls.size(), shown));
  return stalls;
}

}  // namespace sestina

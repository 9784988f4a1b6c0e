#include "io/report/history.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sestina {

namespace {

constexpr std::size_t kLastLosses = 10;

std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

template <class Value>
std::optional<double> median_of(const RunHistory& run, Value value) {
  std::vector<double> values;
  for (const TrainLine& line : run.train) values.push_back(value(line));
  return median(std::move(values));
}

double known(double value) { return std::isfinite(value) ? value : 0; }

}  // namespace

std::vector<double> abscissa(const RunHistory& run, Abscissa kind) {
  std::vector<double> x;
  x.reserve(run.train.size());
  double seconds = 0;
  for (const TrainLine& line : run.train) {
    seconds += known(line.step_s);
    x.push_back(kind == Abscissa::step     ? static_cast<double>(line.step)
                : kind == Abscissa::tokens ? static_cast<double>(line.tokens)
                                           : seconds);
  }
  return x;
}

std::vector<double> validation_abscissa(const RunHistory& run, Abscissa kind) {
  const std::vector<double> train = abscissa(run, kind);
  std::vector<double> x;
  for (const auto& validation : run.validation) {
    const auto after = std::upper_bound(run.train.begin(), run.train.end(), validation.step,
                                        [](std::int64_t step, const TrainLine& line) { return step < line.step; });
    if (kind == Abscissa::step) {
      x.push_back(static_cast<double>(validation.step));
    } else {
      x.push_back(after == run.train.begin() ? 0 : train[static_cast<std::size_t>(after - run.train.begin()) - 1]);
    }
  }
  return x;
}

std::vector<NamedSeries> all_series(const RunHistory& run) {
  struct Column {
    const char* name;
    double (*value)(const TrainLine&);
  };
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  static constexpr Column columns[] = {
      {"loss", [](const TrainLine& l) { return l.loss; }},
      {"grad_norm", [](const TrainLine& l) { return l.grad_norm; }},
      {"lr", [](const TrainLine& l) { return l.lr; }},
      {"step_s", [](const TrainLine& l) { return l.step_s; }},
      {"tokens_per_s", [](const TrainLine& l) { return l.tokens_per_s; }},
      {"data_s", [](const TrainLine& l) { return l.data_s; }},
      {"forward_backward_s", [](const TrainLine& l) { return l.forward_backward_s; }},
      {"reduce_s", [](const TrainLine& l) { return l.reduce_s; }},
      {"optimizer_s", [](const TrainLine& l) { return l.optimizer_s; }},
      {"refresh_wait_s", [](const TrainLine& l) { return l.refresh_wait_s; }},
      {"gather_s", [](const TrainLine& l) { return l.gather_s; }},
      {"preconditioner_age_max", [](const TrainLine& l) { return static_cast<double>(l.preconditioner_age_max); }},
      {"preconditioner_age_mean", [](const TrainLine& l) { return l.preconditioner_age_mean; }},
      {"skipped_steps", [](const TrainLine& l) { return static_cast<double>(l.skipped_steps); }},
      {"memory_peak_bytes",
       [](const TrainLine& l) { return l.memory_peak_bytes > 0 ? static_cast<double>(l.memory_peak_bytes) : none; }},
      {"tflops", [](const TrainLine& l) { return l.tflops; }},
      {"mfu", [](const TrainLine& l) { return l.mfu.value_or(none); }},
      {"energy_j", [](const TrainLine& l) { return l.energy_j.value_or(none); }},
  };
  std::vector<NamedSeries> all;
  for (const Column& column : columns) {
    NamedSeries series{column.name, {}};
    series.values.reserve(run.train.size());
    for (const TrainLine& line : run.train) series.values.push_back(column.value(line));
    all.push_back(std::move(series));
  }
  for (const auto& [name, values] : run.more) all.push_back({name, values});
  std::erase_if(all, [](const NamedSeries& series) {
    return std::none_of(series.values.begin(), series.values.end(),
                        [](double v) { return std::isfinite(v) && v != 0; });
  });
  return all;
}

std::size_t group_size(std::size_t points, std::size_t most) {
  return std::max<std::size_t>(1, (points + most - 1) / most);
}

std::vector<double> thinned(const std::vector<double>& values, std::size_t group, Thinning how) {
  std::vector<double> result;
  result.reserve(values.size() / group + 1);
  for (std::size_t first = 0; first < values.size(); first += group) {
    const std::size_t last = std::min(first + group, values.size());
    if (how == Thinning::last) {
      result.push_back(first == 0 ? values[0] : values[last - 1]);
      continue;
    }
    double sum = 0, least = std::nan(""), most = std::nan("");
    int count = 0;
    for (std::size_t i = first; i < last; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i], ++count;
      least = std::fmin(least, values[i]), most = std::fmax(most, values[i]);
    }
    result.push_back(how == Thinning::least  ? least
                     : how == Thinning::most ? most
                     : count > 0             ? sum / count
                                             : std::nan(""));
  }
  return result;
}

Summary summarize(const RunHistory& run) {
  Summary s;
  std::vector<double> losses;
  double joules = 0;
  for (const TrainLine& line : run.train) {
    s.steps = line.step;
    s.tokens = line.tokens;
    s.seconds += known(line.step_s);
    s.skipped = std::max(s.skipped, line.skipped_steps);
    s.memory_peak_bytes = std::max(s.memory_peak_bytes, line.memory_peak_bytes);
    if (std::isfinite(line.loss)) losses.push_back(line.loss);
    joules += line.energy_j.value_or(std::nan(""));
  }
  if (std::isfinite(joules) && !run.train.empty()) s.energy_j = joules;
  if (const auto found = run.more.find("processor_s"); found != run.more.end() && !s.energy_j) {
    double seconds = 0;
    for (const double one : found->second) seconds += one;
    if (std::isfinite(seconds)) s.processor_s = seconds;
  }
  if (!losses.empty()) {
    const std::size_t first = losses.size() - std::min(losses.size(), kLastLosses);
    double sum = 0;
    for (std::size_t i = first; i < losses.size(); ++i) sum += losses[i];
    s.loss = sum / static_cast<double>(losses.size() - first);
  }
  for (const auto& v : run.validation) {
    s.steps = std::max(s.steps, v.step);
    if (!std::isfinite(v.loss)) continue;
    s.validation_loss = v.loss;
    s.best_validation_loss = std::min(v.loss, s.best_validation_loss.value_or(v.loss));
    s.bits_per_byte = v.bits_per_byte;
  }
  s.step_s = median_of(run, [](const TrainLine& line) { return line.step_s; });
  s.tokens_per_s = median_of(run, [](const TrainLine& line) { return line.tokens_per_s; });
  s.tflops = median_of(run, [](const TrainLine& line) { return line.tflops; });
  s.mfu = median_of(run, [](const TrainLine& line) { return line.mfu.value_or(std::nan("")); });
  return s;
}

}  // namespace sestina

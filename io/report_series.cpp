#include "io/report_series.hpp"

#include <algorithm>
#include <cmath>

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
    x.push_back(kind == Abscissa::step ? static_cast<double>(line.step) : kind == Abscissa::tokens ? static_cast<double>(line.tokens) : seconds);
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

std::vector<double> smoothed(const std::vector<double>& values, std::size_t reach) {
  std::vector<double> sum(values.size() + 1, 0);        // of the finite values before
  std::vector<std::size_t> count(values.size() + 1, 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool finite = std::isfinite(values[i]);
    sum[i + 1] = sum[i] + (finite ? values[i] : 0);
    count[i + 1] = count[i] + finite;
  }
  std::vector<double> result(values.size(), std::nan(""));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t first = i - std::min(reach, i), last = std::min(i + std::min(reach, i) + 1, values.size());
    if (std::isfinite(values[i])) result[i] = (sum[last] - sum[first]) / static_cast<double>(count[last] - count[first]);
  }
  return result;
}

void thin_out(std::vector<double>& x, std::vector<double>& y, std::size_t most) {
  if (x.size() <= most) return;
  const std::size_t group = (x.size() + most - 1) / most;
  std::size_t kept = 0;
  for (std::size_t first = 0; first < x.size(); first += group, ++kept) {
    const std::size_t last = std::min(first + group, x.size());
    double sum = 0;
    int count = 0;
    for (std::size_t i = first; i < last; ++i) {
      if (std::isfinite(y[i])) sum += y[i], ++count;
    }
    x[kept] = first == 0 ? x[0] : x[last - 1];
    y[kept] = count > 0 ? sum / count : std::nan("");
  }
  x.resize(kept);
  y.resize(kept);
}

StepSplit step_split(const RunHistory& run) {
  StepSplit split;
  for (const TrainLine& line : run.train) {
    const double parts[] = {known(line.forward_backward_s), known(line.optimizer_s), known(line.refresh_wait_s),
                            known(line.data_s), known(line.reduce_s) + known(line.gather_s)};
    double rest = line.step_s;
    for (std::size_t p = 0; p < std::size(parts); ++p) {
      split.part[p].push_back(parts[p]);
      rest -= parts[p];
    }
    split.part[StepSplit::kParts - 1].push_back(std::max(0.0, rest));
  }
  return split;
}

Summary summarize(const RunHistory& run) {
  Summary s;
  std::vector<double> losses;
  for (const TrainLine& line : run.train) {
    s.steps = line.step;
    s.tokens = line.tokens;
    s.seconds += known(line.step_s);
    s.skipped = std::max(s.skipped, line.skipped_steps);
    s.memory_peak_bytes = std::max(s.memory_peak_bytes, line.memory_peak_bytes);
    if (std::isfinite(line.loss)) losses.push_back(line.loss);
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
  s.tokens_per_s = median_of(run, [](const TrainLine& line) { return line.tokens_per_s; });
  s.tflops = median_of(run, [](const TrainLine& line) { return line.tflops; });
  s.mfu = median_of(run, [](const TrainLine& line) { return line.mfu.value_or(std::nan("")); });
  return s;
}

}  // namespace sestina

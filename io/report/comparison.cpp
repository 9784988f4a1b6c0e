#include "io/report/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>

#include "io/report/page.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr double last_part = 0.1;  // of a run's updates: its final training loss is their mean

// Keys in which runs of one entry may differ: they say which run it is, and how it is executed.
bool names_the_run(const std::string& key) {
  return key == "run.seed" || key == "run.name" || key == "run.dir" || key == "run.threads" || key == "run.walltime";
}

std::int64_t count_in(const FlatDeck& deck, std::string_view key) {
  const std::string text = value_of(deck, key);
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string without_seed(const std::string& label) {
  const auto at = label.rfind("_seed=");
  const bool digits = at != label.npos && label.find_first_not_of("0123456789", at + 6) == label.npos;
  return digits && at > 0 ? label.substr(0, at) : label;
}

double tokens_of_update(const RunHistory& run) {
  if (run.train.empty() || run.train.back().step == 0) return std::nan("");
  return static_cast<double>(run.train.back().tokens) / static_cast<double>(run.train.back().step);
}

double last_step(const RunHistory& run) { return static_cast<double>(summarize(run).steps); }

std::vector<LossPoint> smoothed_training(const RunHistory& run) {
  std::vector<LossPoint> lines, points;
  for (const TrainLine& line : run.train)
    if (std::isfinite(line.loss)) lines.push_back({static_cast<double>(line.step), line.loss});
  if (lines.empty()) return {};
  const double width = last_part * lines.back().step;
  double sum = 0;
  for (std::size_t first = 0, i = 0; i < lines.size(); ++i) {
    sum += lines[i].loss;
    while (first < i && lines[first].step <= lines[i].step - width) sum -= lines[first++].loss;
    points.push_back({lines[i].step, sum / static_cast<double>(i - first + 1)});
  }
  return points;
}

}  // namespace

std::vector<LossPoint> loss_curve(const RunHistory& run, bool validation) {
  if (!validation) return smoothed_training(run);
  std::vector<LossPoint> points;
  for (const auto& v : run.validation)
    if (std::isfinite(v.loss)) points.push_back({static_cast<double>(v.step), v.loss});
  return points;
}

std::optional<double> final_loss(const RunHistory& run, bool validation) {
  if (run.diverged) return HUGE_VAL;
  const auto points = loss_curve(run, validation);
  return points.empty() ? std::nullopt : std::optional(points.back().loss);
}

std::optional<double> updates_to(std::span<const LossPoint> points, double loss) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].loss > loss) continue;
    if (i == 0) return points[0].step;
    const LossPoint &a = points[i - 1], &b = points[i];
    return a.step + (a.loss - loss) / (a.loss - b.loss) * (b.step - a.step);
  }
  return std::nullopt;
}

std::vector<LossPoint> mean_curve(const std::vector<std::vector<LossPoint>>& curves) {
  std::map<double, std::vector<double>> by_step;
  for (const auto& curve : curves)
    for (const LossPoint& point : curve) by_step[point.step].push_back(point.loss);
  std::vector<LossPoint> mean;
  for (const auto& [step, losses] : by_step)
    if (losses.size() == curves.size()) mean.push_back({step, mean_spread(losses).mean});
  return mean;
}

MeanSpread mean_spread(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = values.empty() ? std::nan("") : sum / n;
  if (values.size() < 2 || !std::isfinite(mean)) return {mean, std::nullopt};
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / (n - 1))};
}

double one_sided_p(double z) { return std::erfc(z / std::sqrt(2.0)) / 2; }

std::vector<std::vector<std::size_t>> equal_decks(const std::vector<ReportRun>& runs) {
  std::vector<std::vector<std::size_t>> groups;
  std::vector<FlatDeck> decks;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    FlatDeck deck = flat_deck(runs[r].deck);
    std::erase_if(deck, [](const auto& entry) { return names_the_run(entry.first); });
    std::sort(deck.begin(), deck.end());
    const auto found = deck.empty() ? decks.end() : std::find(decks.begin(), decks.end(), deck);
    if (found != decks.end()) {
      groups[static_cast<std::size_t>(found - decks.begin())].push_back(r);
    } else {
      groups.push_back({r});
      decks.push_back(std::move(deck));
    }
  }
  return groups;
}

std::string mid_schedule(const ReportRun& run) {
  const FlatDeck deck = flat_deck(run.deck);
  const std::int64_t own = count_in(deck, "schedule.steps"), end = own > 0 ? own : count_in(deck, "run.steps");
  const double reached = last_step(run.history);
  if (end == 0) return fmt::format("mid-schedule: at step {}, and no deck says where its schedule ends", reached);
  if (reached >= static_cast<double>(end)) return "";
  return fmt::format("mid-schedule: {} at step {} of {}", run.running ? "now" : "stopped", reached, end);
}

namespace {

double required_loss(const ReportRun& run, bool validation) {
  const auto loss = final_loss(run.history, validation);
  if (!loss) fail(ExitCode::input_missing, "report --compare: {}: no loss in metrics.jsonl", run.label);
  return *loss;
}

ComparedEntry entry_of(const std::vector<ReportRun>& runs, const std::vector<std::size_t>& group, bool validation) {
  ComparedEntry entry;
  entry.name = without_seed(runs[group[0]].label);
  std::vector<double> losses;
  for (const std::size_t r : group) {
    entry.runs.push_back(runs[r].label);
    losses.push_back(required_loss(runs[r], validation));
    entry.steps = std::max(entry.steps, last_step(runs[r].history));
    if (entry.mid_schedule.empty() && !runs[r].history.diverged) entry.mid_schedule = mid_schedule(runs[r]);
  }
  entry.loss = mean_spread(losses);
  return entry;
}

// Fills in where the runs of an entry reach the target.
void find_target(const std::vector<ReportRun>& runs, const std::vector<std::size_t>& group, bool validation,
                 double target, ComparedEntry& entry) {
  std::vector<std::vector<LossPoint>> curves;
  std::vector<double> updates;
  for (const std::size_t r : group) {
    curves.push_back(loss_curve(runs[r].history, validation));
    if (const auto hit = updates_to(curves.back(), target)) updates.push_back(*hit);
  }
  const double tokens = tokens_of_update(runs[group[0]].history);
  entry.reached = updates.size();
  entry.updates = updates_to(mean_curve(curves), target);
  if (entry.updates) entry.tokens = *entry.updates * tokens;
  if (updates.size() == group.size()) entry.updates_spread = mean_spread(updates).spread;
  if (entry.updates_spread) entry.tokens_spread = *entry.updates_spread * tokens;
}

// Returns the standard deviation of one run's loss over all entries of three runs and more; nothing: there is none.
std::optional<double> pooled_sigma(const std::vector<ComparedEntry>& entries) {
  constexpr std::size_t least = 3;
  double squares = 0, freedom = 0;
  for (const ComparedEntry& entry : entries) {
    if (entry.n() < least || !entry.loss.spread) continue;
    squares += *entry.loss.spread * *entry.loss.spread * static_cast<double>(entry.n() - 1);
    freedom += static_cast<double>(entry.n() - 1);
  }
  return squares > 0 ? std::optional(std::sqrt(squares / freedom)) : std::nullopt;
}

bool can_be_tested(const ComparedEntry& entry) { return entry.mid_schedule.empty() && std::isfinite(entry.loss.mean); }

// Returns the largest final mean of the entries that can be tested, of all where none can; nothing: all diverged.
std::optional<double> worst_mean(const std::vector<ComparedEntry>& entries) {
  const bool some = std::any_of(entries.begin(), entries.end(), can_be_tested);
  std::optional<double> worst;
  for (const ComparedEntry& entry : entries)
    if (some ? can_be_tested(entry) : std::isfinite(entry.loss.mean))
      worst = std::max(worst.value_or(entry.loss.mean), entry.loss.mean);
  return worst;
}

ComparedPair pair_of(const std::vector<ComparedEntry>& entries, std::size_t first, std::size_t second, double sigma) {
  const auto lead = [&](std::size_t a, std::size_t b) {  // of a over b, as loss
    return entries[b].loss.mean - entries[a].loss.mean + contest_loss_per_step * (entries[b].steps - entries[a].steps);
  };
  const bool in_order = lead(first, second) >= 0;
  ComparedPair pair{in_order ? first : second, in_order ? second : first};
  const ComparedEntry &a = entries[pair.better], &b = entries[pair.other];
  pair.difference = b.loss.mean - a.loss.mean;
  pair.steps = b.steps - a.steps;
  const double width = std::sqrt(1 / static_cast<double>(a.n()) + 1 / static_cast<double>(b.n()));
  pair.z = lead(pair.better, pair.other) / (sigma * width);
  pair.p = one_sided_p(pair.z);
  return pair;
}

void test_entries(Comparison& comparison) {
  auto& entries = comparison.entries;
  for (ComparedEntry& entry : entries) {
    if (!comparison.target || !can_be_tested(entry)) continue;
    entry.z = (*comparison.target - entry.loss.mean) * std::sqrt(static_cast<double>(entry.n())) / comparison.sigma;
    entry.p = one_sided_p(*entry.z);
  }
  for (std::size_t a = 0; a < entries.size(); ++a)
    for (std::size_t b = a + 1; b < entries.size(); ++b)
      if (can_be_tested(entries[a]) && can_be_tested(entries[b]))
        comparison.pairs.push_back(pair_of(entries, a, b, comparison.sigma));
}

}  // namespace

Comparison compare_runs(const std::vector<ReportRun>& runs, const CompareOptions& options) {
  Comparison comparison;
  comparison.validation = std::all_of(runs.begin(), runs.end(), [](const ReportRun& run) {
    return run.history.diverged || !loss_curve(run.history, true).empty();
  });
  const auto groups = equal_decks(runs);
  for (const auto& group : groups) comparison.entries.push_back(entry_of(runs, group, comparison.validation));
  for (ComparedEntry& entry : comparison.entries) {  // names that two entries share become those of their runs
    const auto same = [&](const ComparedEntry& other) { return other.name == entry.name; };
    if (std::count_if(comparison.entries.begin(), comparison.entries.end(), same) > 1) entry.name = entry.runs[0];
  }
  comparison.target = options.target ? options.target : worst_mean(comparison.entries);
  if (comparison.target)
    for (std::size_t e = 0; e < groups.size(); ++e)
      find_target(runs, groups[e], comparison.validation, *comparison.target, comparison.entries[e]);
  const auto pooled = pooled_sigma(comparison.entries);
  comparison.sigma = options.sigma.value_or(pooled.value_or(contest_sigma));
  comparison.sigma_from = options.sigma ? "given" : pooled ? "pooled" : "contest";
  test_entries(comparison);
  return comparison;
}

}  // namespace sestina

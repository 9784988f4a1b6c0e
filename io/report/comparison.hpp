// Compares what runs came to: final losses with mean, spread and number of runs, updates and tokens to a loss, and the
// tests of significance of the contest of optimizers by steps to a loss (modded-nanogpt, track 3, its rules of
// 2026-08). Pure arithmetic on histories. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/report/report.hpp"

namespace sestina {

// The contest's numbers. A result counts at p < 0.001, which (L - mean) sqrt(n) >= 0.004 means at its sigma.
inline constexpr double contest_sigma = 0.0013;          // standard deviation of a run's final loss over seeds
inline constexpr double contest_loss_per_step = 4.5e-5;  // what a step is worth at the end of a run: 0.0045 per 100
inline constexpr double contest_p = 0.001;

struct LossPoint {
  double step, loss;
};
// Returns the validation losses, or the training loss smoothed over the last tenth of the run's updates at the end:
// each point is the mean over the lines of that many updates up to its own. Losses that are not finite are left out.
std::vector<LossPoint> loss_curve(const RunHistory&, bool validation);
// Returns the loss of the last point; infinity for a run that diverged, nothing for one without any loss.
std::optional<double> final_loss(const RunHistory&, bool validation);
// Returns the updates at which straight lines between the points first reach the loss, those of the
// first point where that has it already (evaluate more often to know better); nothing: they do not.
std::optional<double> updates_to(std::span<const LossPoint>, double loss);
// Returns the mean of the curves at the steps that all of them have.
std::vector<LossPoint> mean_curve(const std::vector<std::vector<LossPoint>>&);

struct MeanSpread {
  double mean = 0;               // NaN: of nothing
  std::optional<double> spread;  // standard deviation of a value (n - 1 in the denominator); nothing for one value
};
MeanSpread mean_spread(std::span<const double>);

double one_sided_p(double z);  // probability of a normal deviate above z

// Returns the runs by decks that are equal but for run.seed and for keys that say where and on how many threads a run
// goes on; groups in the order of their first runs. A run without a deck is a group of its own.
std::vector<std::vector<std::size_t>> equal_decks(const std::vector<ReportRun>&);

// Returns why a run cannot be compared at its end: "mid-schedule: stopped at step 400 of 1000"; "" where it can.
std::string mid_schedule(const ReportRun&);

struct ComparedEntry {
  std::string name;               // label of its first run, without "_seed=1"
  std::vector<std::string> runs;  // labels
  MeanSpread loss;                // final; infinite where a run diverged
  double steps = 0;               // updates of the longest of its runs
  // Where the mean curve of its runs reaches the target, and the spread over runs where all of them do.
  std::optional<double> updates, updates_spread, tokens, tokens_spread;
  std::size_t reached = 0;     // runs that reach it
  std::optional<double> z, p;  // z = (target - mean) sqrt(n) / sigma; withheld at mid-schedule
  std::string mid_schedule;    // of its first run that is; "": none
  std::size_t n() const { return runs.size(); }
};

// The pairwise rule, for entries at their own numbers of steps:
// z = (loss of the other - loss of the better + 0.0045 (steps of the other - steps of the better) / 100)
//     / (sigma sqrt(1 / n1 + 1 / n2)).
struct ComparedPair {
  std::size_t better = 0, other = 0;  // entries; the better one has z >= 0
  double difference = 0, steps = 0;   // loss and steps of the other less those of the better
  double z = 0, p = 0;
};

struct CompareOptions {
  std::optional<double> target = {};  // a loss; default: the worst final mean of entries that are not at mid-schedule
  std::optional<double> sigma = {};   // default: pooled over entries of three runs and more, else the contest's
};

struct Comparison {
  bool validation = false;       // losses are of validation, which needs it in every run; else of training
  std::optional<double> target;  // nothing: no entry has a finite loss
  double sigma = contest_sigma;
  std::string sigma_from;  // "given", "pooled" or "contest"
  std::vector<ComparedEntry> entries;
  std::vector<ComparedPair> pairs;  // of entries that are not at mid-schedule and did not diverge
};

// Compares at least one run. Error(input_missing) for a run without any loss.
Comparison compare_runs(const std::vector<ReportRun>&, const CompareOptions&);

// Both say every number of the comparison; not finite is null, or "diverged".
std::string comparison_text(const Comparison&);
std::string comparison_json(const Comparison&);

}  // namespace sestina

// What the runs of a sweep came to: losses, points in the order of their means, the best one, edges of the grid; as a
// table, as JSON and as charts for the page. No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "app/sweep/sweep_plan.hpp"
#include "app/sweep/sweep_points.hpp"
#include "io/report/comparison.hpp"

namespace sestina {

struct SweepResult {
  SweepRun run;
  bool finished = false;  // it has all of its updates, or it diverged
  int exit = -1;          // 0 or that of `diverged` where it finished
  double loss = 0;        // infinite where it diverged, NaN where it did not finish
};
// Reads what a run has left in its directory.
SweepResult read_result(const Sweep&, const SweepRun&);

struct PointResult {
  std::size_t point = 0;
  MeanSpread loss;  // over seeds; infinite where one diverged
};

struct SweepSummary {
  std::vector<SweepResult> runs;    // all of them, rung after rung
  std::vector<PointResult> ranked;  // of the last rung, by mean loss
  std::vector<SweepEdge> edges;     // of the best point
  bool any_best() const;            // some point did not diverge; it is the first of ranked
};
// Ranks the points of these results, each of which has finished; the last results.size() - first are the last rung's.
SweepSummary summarize_sweep(const Sweep&, std::vector<SweepResult> results, std::size_t first);
// Returns the points by mean loss.
std::vector<PointResult> ranked_points(const Sweep&, const SweepResult* begin, const SweepResult* end);

// {"metric", "runs": [{"values", "seed", "steps", "loss", "dir", "exit"}], "best": {"values", "loss", "spread", "n",
// "deck"} or null, "on_edge": [{"key", "value", "extend"}]}; a loss that is not finite is null.
std::string sweep_json(const Sweep&, const SweepSummary&);
std::string sweep_table(const Sweep&, const SweepSummary&);  // the points by loss, for people
std::string edge_text(const SweepEdge&);                     // "schedule.lr: the best value is at the edge ..."
// A chart of the loss against each key with several values, as HTML for the report's page.
std::string sweep_charts(const Sweep&, const SweepSummary&);

}  // namespace sestina

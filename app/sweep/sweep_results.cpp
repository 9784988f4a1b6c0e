#include "app/sweep/sweep_results.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/report/history.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

Json loss_json(double loss) { return std::isfinite(loss) ? Json(loss) : Json(nullptr); }

// TOML numbers, strings, booleans and arrays of them read as JSON too, but for infinities.
Json value_json(const std::string& toml) {
  const Json value = Json::parse(toml, nullptr, false);
  return value.is_discarded() ? Json(toml) : value;
}

Json values_json(const Sweep& sweep, std::size_t point) {
  Json values = Json::object();
  for (std::size_t a = 0; a < sweep.options.grid.size(); ++a)
    values[sweep.options.grid[a].key] = value_json(sweep.points[point].values[a]);
  return values;
}

Json best_json(const Sweep& sweep, const SweepSummary& summary) {
  if (!summary.any_best()) return nullptr;
  const PointResult& best = summary.ranked.front();
  return {{"values", values_json(sweep, best.point)},
          {"loss", best.loss.mean},
          {"spread", best.loss.spread ? Json(*best.loss.spread) : Json(nullptr)},
          {"n", sweep.seeds.size()},
          {"deck", sweep.dir + "/best.toml"}};
}

}  // namespace

SweepResult read_result(const Sweep& sweep, const SweepRun& run) {
  SweepResult result{run, false, -1, std::nan("")};
  std::error_code ignored;
  if (!std::filesystem::exists(run.dir + "/metrics.jsonl", ignored)) return result;
  const RunHistory history = read_history(run.dir);
  const bool whole = std::any_of(history.checkpoints.begin(), history.checkpoints.end(),
                                 [&](const auto& saved) { return saved.step >= run.steps && saved.error.empty(); });
  result.finished = whole || history.diverged;
  if (!result.finished) return result;
  result.exit = static_cast<int>(history.diverged ? ExitCode::diverged : ExitCode::done);
  result.loss = final_loss(history, sweep.validation).value_or(HUGE_VAL);
  return result;
}

bool SweepSummary::any_best() const { return !ranked.empty() && std::isfinite(ranked.front().loss.mean); }

std::vector<PointResult> ranked_points(const Sweep& sweep, const SweepResult* begin, const SweepResult* end) {
  std::vector<PointResult> points;
  std::vector<double> means;
  for (const SweepResult* result = begin; result < end; result += sweep.seeds.size()) {
    std::vector<double> losses;
    for (std::size_t s = 0; s < sweep.seeds.size(); ++s) losses.push_back(result[s].loss);
    points.push_back({result->run.point, mean_spread(losses)});
    means.push_back(points.back().loss.mean);
  }
  std::vector<PointResult> ranked;
  for (const std::size_t i : order_by_loss(means)) ranked.push_back(points[i]);
  return ranked;
}

SweepSummary summarize_sweep(const Sweep& sweep, std::vector<SweepResult> results, std::size_t first) {
  SweepSummary summary;
  summary.runs = std::move(results);
  summary.ranked = ranked_points(sweep, summary.runs.data() + first, summary.runs.data() + summary.runs.size());
  if (summary.any_best()) summary.edges = edges_of(sweep.options.grid, sweep.points[summary.ranked.front().point]);
  return summary;
}

std::string sweep_json(const Sweep& sweep, const SweepSummary& summary) {
  Json runs = Json::array(), edges = Json::array();
  for (const SweepResult& result : summary.runs)
    runs.push_back({{"values", values_json(sweep, result.run.point)},
                    {"seed", result.run.seed},
                    {"steps", result.run.steps},
                    {"loss", loss_json(result.loss)},
                    {"dir", result.run.dir},
                    {"exit", result.exit}});
  for (const SweepEdge& edge : summary.edges)
    edges.push_back({{"key", edge.key}, {"value", value_json(edge.value)}, {"extend", edge.above ? "above" : "below"}});
  const Json all = {{"metric", sweep.validation ? "validation" : "training"},
                    {"runs", runs},
                    {"best", best_json(sweep, summary)},
                    {"on_edge", edges}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string edge_text(const SweepEdge& edge) {
  return fmt::format("the best value of {} is at the edge of its grid: extend {} {} {}", edge.key, edge.key,
                     edge.above ? "above" : "below", edge.value);
}

std::string sweep_table(const Sweep& sweep, const SweepSummary& summary) {
  std::size_t width = 5;
  for (const PointResult& result : summary.ranked) width = std::max(width, sweep.points[result.point].name.size());
  std::string text = fmt::format("{:{}}  {:>5}  {:>10}  {:>8}\n", "point", width, "seeds",
                                 sweep.validation ? "validation" : "training", "spread");
  for (const PointResult& result : summary.ranked) {
    const std::string loss = std::isfinite(result.loss.mean) ? fmt::format("{:.4f}", result.loss.mean) : "diverged";
    const std::string spread = result.loss.spread ? fmt::format("{:.4f}", *result.loss.spread) : "-";
    text += fmt::format("{:{}}  {:>5}  {:>10}  {:>8}\n", sweep.points[result.point].name, width, sweep.seeds.size(),
                        loss, spread);
  }
  const std::size_t last = summary.ranked.size();
  if (last < sweep.points.size())
    text += fmt::format("halving left {} of {} points; losses of the rungs: {}/sweep.json\n", last, sweep.points.size(),
                        sweep.dir);
  return text;
}

}  // namespace sestina

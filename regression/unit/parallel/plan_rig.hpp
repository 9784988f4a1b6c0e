// Options of a preset under a matrix optimizer, and of pipelines, for plans.
#pragma once
#include <algorithm>
#include <numeric>
#include <set>

#include "core/deck/options.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {

inline ModelConfig small_model() {
  ModelConfig model = preset("llama-8m");
  model.num_hidden_layers = 3;
  return model;
}

inline Options plan_options(const ModelConfig& model, const std::string& kind, int dp, int tp = 1) {
  Options options;
  options.model = model;
  options.data.sequence_length = 128;
  options.train.global_batch = options.train.micro_batch = 8;
  options.optimizer.kind = kind;
  if (const MatrixKind* known = find_matrix_kind(kind)) options.optimizer.matrix = default_options(*known);
  options.parallel.dp = dp;
  options.parallel.tp = tp;
  return options;
}

inline PipelineOptions pipeline_of(ParallelOptions::Schedule kind, int stages, int ranks, int micros,
                                   int delay_scale = 1) {
  PipelineOptions options;
  options.kind = kind;
  options.stages = stages;
  options.ranks = ranks;
  options.micros = micros;
  options.delay_scale = delay_scale;
  options.round_robin = kind == ParallelOptions::Schedule::interleaved;
  return options;
}

// Largest over mean load of the ranks, counted again from the owners alone.
inline double dp_ratio(const StagePlan& stage, int dp) {
  std::vector<double> load(static_cast<std::size_t>(dp), 0);
  for (std::size_t i = 0; i < stage.specs.size(); ++i)
    if (stage.owner[i] >= 0) load[static_cast<std::size_t>(stage.owner[i])] += static_cast<double>(stage.cost[i]);
  const double sum = std::accumulate(load.begin(), load.end(), 0.0);
  return sum > 0 ? *std::max_element(load.begin(), load.end()) * dp / sum : 1;
}

}  // namespace sestina

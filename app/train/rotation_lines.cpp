#include "app/train/rotation_lines.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>

#include "core/optimizer/base/routing.hpp"

namespace sestina {
namespace {

using ByWeight = std::map<std::string, RotationMeasure>;

// Gathers the measures of all ranks by the bits of their numbers, which need not be finite.
ByWeight gather_measures(Communicator& world, const std::vector<PipelineStage*>& stages) {
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  const auto number = [](const nlohmann::json& value) { return std::bit_cast<double>(value.get<std::uint64_t>()); };
  nlohmann::json mine = nlohmann::json::array();
  for (PipelineStage* stage : stages)
    for (const RotationRecord& r : stage->rotation_records()) {
      const RotationMeasure& m = r.measure;
      mine.push_back({r.weight, bits(m.largest_q), bits(m.defect), bits(m.applied_defect), bits(m.sigma_max),
                      bits(m.sigma_min), bits(m.squares), bits(m.count)});
    }
  ByWeight all;
  for (const std::string& text : world.all_gather(mine.dump()))
    for (const nlohmann::json& r : nlohmann::json::parse(text))
      all[r.at(0).get<std::string>()].add({number(r.at(1)), number(r.at(2)), number(r.at(3)), number(r.at(4)),
                                           number(r.at(5)), number(r.at(6)), number(r.at(7))});
  return all;
}

struct RotationFold {
  Metrics::RotationLine line;
  RotationMeasure measure;

  Metrics::RotationLine finished() {
    line.largest_q = measure.largest_q;
    line.defect = measure.defect;
    line.applied_defect = measure.applied_defect;
    line.sigma_max = measure.sigma_max;
    line.sigma_min = measure.sigma_min;
    line.sigma_rms = std::sqrt(measure.squares / measure.count);
    return line;
  }
};

}  // namespace

RotationLines gather_rotations(Communicator& world, const std::vector<PipelineStage*>& stages, const Plan& plan) {
  const ByWeight measured = gather_measures(world, stages);
  const auto layers = static_cast<std::size_t>(plan.input.model.num_hidden_layers);
  std::vector<RotationFold> folds;
  std::map<std::string, std::size_t> places;
  RotationLines all;
  for (const StagePlan& stage : plan.stages)
    for (const TensorSpec& spec : stage.specs) {
      const auto found = measured.find(spec.weight);
      if (spec.part != 0 || found == measured.end()) continue;
      TensorSpec dense = spec;
      dense.name = spec.weight;
      const std::string pattern = name_of_all_layers(dense);
      const auto [place, is_new] = places.try_emplace(pattern, folds.size());
      if (is_new) folds.push_back({{.pattern = pattern, .layers = std::vector<double>(layers, std::nan(""))}, {}});
      RotationFold& fold = folds[place->second];
      const RotationMeasure& measure = found->second;
      fold.measure.add(measure);
      if (spec.layer >= 0) fold.line.layers[at(spec.layer)] = measure.largest_q;
      if (!all.furthest.empty() && larger_or_nan(all.largest_q, measure.largest_q) == all.largest_q) continue;
      all.furthest = spec.weight;
      all.largest_q = measure.largest_q;
    }
  for (RotationFold& fold : folds) all.lines.push_back(fold.finished());
  return all;
}

std::vector<EarlyMerge> gather_early_merges(Communicator& world, const std::vector<PipelineStage*>& stages) {
  nlohmann::json mine = nlohmann::json::array();
  for (PipelineStage* stage : stages)
    for (const EarlyMerge& merge : stage->early_merges()) mine.push_back({merge.layer, merge.weight, merge.largest_q});
  std::map<int, EarlyMerge> by_layer;  // each is on one stage, all of whose ranks tell of it
  for (const std::string& text : world.all_gather(mine.dump()))
    for (const nlohmann::json& merge : nlohmann::json::parse(text)) {
      const int layer = merge.at(0).get<int>();
      by_layer[layer] = {layer, merge.at(1).get<std::string>(), merge.at(2).get<double>()};
    }
  std::vector<EarlyMerge> all;
  for (const auto& [layer, merge] : by_layer) all.push_back(merge);
  return all;
}

}  // namespace sestina

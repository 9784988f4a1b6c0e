#include "app/train/update_proof.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/update_table.hpp"

namespace sestina {
namespace {

nlohmann::json to_json(const UpdateRecord& r) {
  return {r.tensor,        r.rule,           r.elements,       r.calls,         r.saved,        r.due,
          r.measure.moved, r.measure.weight, r.measure.defect, r.measure.sides, r.measure.decay};
}

double number_of(const nlohmann::json& value) { return value.is_null() ? std::nan("") : value.get<double>(); }

UpdateRecord record_of(const nlohmann::json& r) {
  return {r.at(0),
          r.at(1),
          r.at(2),
          r.at(3),
          r.at(4),
          r.at(5),
          {number_of(r.at(6)), number_of(r.at(7)), number_of(r.at(8)), number_of(r.at(9)), number_of(r.at(10))}};
}

// A record with the rank that tells it.
struct Told {
  int rank = 0;
  const UpdateRecord* record = nullptr;
};
using ByTensor = std::map<std::string, std::vector<Told>>;

ByTensor by_tensor(const RankRecords& all) {
  ByTensor tensors;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const UpdateRecord& record : all[rank]) tensors[record.tensor].push_back({static_cast<int>(rank), &record});
  return tensors;
}

void require_tensor(const TensorSpec& spec, const std::string& asked, const std::vector<Told>& told) {
  std::int64_t elements = 0;
  for (const auto& [rank, record] : told) {
    if (record->rule != asked)
      fail_on_all(ExitCode::internal, "{} is updated by {} on rank {}; the deck asks for {}", spec.name, record->rule,
                  rank, asked);
    if (record->calls != record->due)
      fail_on_all(ExitCode::internal, "{}: calls of {} on rank {}: {}; updates of its stage: {}", spec.name, asked,
                  rank, record->calls, record->due);
    if (record->saved) elements += record->elements;
  }
  if (elements != spec.elements())
    fail_on_all(ExitCode::internal, "{}: {} updates {} of {} elements; the deck asks for all of them", spec.name, asked,
                elements, spec.elements());
}

// The sums of the tensors of one line.
struct Fold {
  Metrics::UpdateLine line;
  std::set<int> owners;
  double elements = 0, moved = 0, weight = 0, defect = 0, sides = 0;
  std::vector<double> moved_of, weight_of;  // by layer
  bool calls_known = false;

  void add_calls(std::int64_t calls) {
    line.calls = calls_known ? std::min(line.calls, calls) : calls;
    calls_known = true;
  }
  void add(const Told& told, int layer) {
    const UpdateRecord& record = *told.record;
    owners.insert(told.rank);
    if (!record.saved) return;
    elements += static_cast<double>(record.elements);
    moved += record.measure.moved;
    weight += record.measure.weight;
    defect += record.measure.defect;
    sides += record.measure.sides;
    line.decay = record.measure.decay;
    if (layer < 0) return;
    moved_of[at(layer)] = std::fmax(moved_of[at(layer)], 0) + record.measure.moved;
    weight_of[at(layer)] += record.measure.weight;
  }
  Metrics::UpdateLine finished() {
    line.owner = ranks_text({owners.begin(), owners.end()});
    if (sides > 0) line.orthogonality_defect = std::sqrt(defect / sides);
    line.update_rms = std::sqrt(moved / elements);
    line.update_ratio = std::sqrt(moved / weight);
    for (std::size_t layer = 0; layer < moved_of.size(); ++layer)
      line.layers.push_back(std::sqrt(moved_of[layer] / weight_of[layer]));
    return line;
  }
};

}  // namespace

RankRecords gather_records(Communicator& world, const std::vector<PipelineStage*>& stages) {
  nlohmann::json mine = nlohmann::json::array();
  for (PipelineStage* stage : stages)
    for (const UpdateRecord& record : stage->update_records()) mine.push_back(to_json(record));
  RankRecords all;
  for (const std::string& text : world.all_gather(mine.dump())) {
    all.emplace_back();
    for (const nlohmann::json& record : nlohmann::json::parse(text)) all.back().push_back(record_of(record));
  }
  return all;
}

bool UpdateProof::require_asked(const RankRecords& all) const {
  const ByTensor told = by_tensor(all);
  bool made = true;
  for (const StagePlan& stage : plan_.stages)
    for (const TensorSpec& spec : stage.specs) {
      if (!spec.trainable) continue;
      const std::string asked = rule_of(spec, plan_.input.optimizer);
      const auto found = told.find(spec.name);
      if (found == told.end())
        fail_on_all(ExitCode::internal, "{} is updated by no optimizer; the deck asks for {}", spec.name, asked);
      require_tensor(spec, asked, found->second);
      made = made && found->second.front().record->due > 0;
    }
  return made;
}

std::vector<Metrics::UpdateLine> UpdateProof::lines(const RankRecords& all) {
  const ByTensor told = by_tensor(all);
  const auto layers = static_cast<std::size_t>(plan_.input.model.num_hidden_layers);
  std::vector<Fold> folds;
  std::map<std::string, std::size_t> places;
  for (int stage = 0; stage < plan_.pp; ++stage)
    for (int number = 0; number < static_cast<int>(plan_.stages[at(stage)].specs.size()); ++number) {
      const TensorSpec& spec = plan_.stages[at(stage)].specs[at(number)];
      const auto found = told.find(spec.name);
      if (found == told.end()) continue;
      const UpdateRow row = update_row(plan_, stage, number);
      const std::string& rule = found->second.front().record->rule;
      const auto [place, is_new] =
          places.try_emplace(fmt::format("{} {} {}", row.pattern, rule, row.split), folds.size());
      if (is_new) {
        folds.emplace_back();
        folds.back().line.pattern = row.pattern;
        folds.back().line.rule = rule;
        folds.back().line.split = row.split;
        folds.back().moved_of.assign(spec.layer < 0 ? 0 : layers, std::nan(""));
        folds.back().weight_of.assign(spec.layer < 0 ? 0 : layers, 0);
      }
      Fold& fold = folds[place->second];
      std::int64_t calls = found->second.front().record->calls;
      for (const Told& one : found->second) {
        fold.add(one, spec.layer);
        calls = std::min(calls, one.record->calls);
      }
      fold.add_calls(calls - told_[spec.name]);
      told_[spec.name] = calls;
    }
  std::vector<Metrics::UpdateLine> lines;
  for (Fold& fold : folds) lines.push_back(fold.finished());
  return lines;
}

}  // namespace sestina

// Prints `sestina plan --json` as one object.
#include <fmt/core.h>
#include <algorithm>

#include <nlohmann/json.hpp>

#include "app/verbs/run_plan.hpp"
#include "core/layout/tensor_spec.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/block_turns.hpp"
#include "parallel/plan/update_table.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(std::optional<double> value) { return value ? Json(*value) : Json(nullptr); }

Json names_of(const StagePlan& stage, const std::vector<int>& specs) {
  Json names = Json::array();
  for (const int spec : specs) names.push_back(stage.specs[static_cast<std::size_t>(spec)].name);
  return names;
}

// Returns {name: rank} of every matrix; null: each rank has its own, or several have shares. An ordered object looks
// through all its keys for each new one, and a model has very many names: they are all different, so they are added to
// its list as they are.
Json ranks_by_name(const Plan& plan, std::vector<int> StagePlan::*rank_of) {
  Json::object_t ranks;
  Json::object_t::Container& list = ranks;
  for (const StagePlan& stage : plan.stages)
    for (std::size_t i = 0; i < stage.specs.size(); ++i) {
      const int rank = (stage.*rank_of)[i];
      if (rank != scalar_tensor) list.emplace_back(stage.specs[i].name, rank < 0 ? Json(nullptr) : Json(rank));
    }
  return ranks;
}

Json rank_json(const RunPlan& run, std::size_t stage_number, std::size_t rank) {
  const StagePlan& stage = run.plan.stages[stage_number];
  const RankMemory& memory = run.memory[stage_number * stage.rank_cost.size() + rank];
  const auto tp = static_cast<std::size_t>(run.plan.tp);
  Json bytes = Json::object();
  for (const auto& kind : kinds_of(memory, false)) bytes[kind.name] = kind.bytes;
  bytes["total"] = memory.total();
  bytes["nvme"] = memory.nvme;
  bytes["nvme_beside"] = memory.outside_tiers;
  // Without matrices there are only rows of the scalar optimizer, which count element by element.
  const bool matrices = run.options.optimizer.matrix.has_value();
  return {{"stage", stage_number},
          {"dp", rank / tp},
          {"tp", rank % tp},
          {"cost", matrices ? stage.rank_cost[rank] : memory.scalar_elements},
          {"elements", matrices ? stage.rank_elements[rank] : memory.scalar_elements},
          {"scalar_elements", memory.scalar_elements},
          {"bytes", bytes}};
}

Json ranks_json(const RunPlan& run) {
  Json ranks = Json::array();
  for (std::size_t stage = 0; stage < run.plan.stages.size(); ++stage)
    for (std::size_t rank = 0; rank < run.plan.stages[stage].rank_cost.size(); ++rank)
      ranks.push_back(rank_json(run, stage, rank));
  return ranks;
}

Json micro_groups_json(const Plan& plan) {
  Json groups = Json::array();
  for (std::size_t number = 0; number < plan.stages.size(); ++number) {
    const StagePlan& stage = plan.stages[number];
    for (std::size_t rank = 0; rank < stage.micro_groups.size(); ++rank)
      for (const MicroGroup& group : stage.micro_groups[rank])
        groups.push_back(
            {{"stage", number}, {"dp", rank}, {"bytes", group.bytes}, {"matrices", names_of(stage, group.specs)}});
  }
  return groups;
}

// Returns the shares of matrices by rank of the stage; together: the ranks that update the matrix each with its share.
Json shares_json(const Plan& plan) {
  Json shares = Json::array();
  for (std::size_t number = 0; number < plan.stages.size(); ++number)
    for (const MatrixShare& share : plan.stages[number].shares)
      shares.push_back({{"stage", number},
                        {"matrix", plan.stages[number].specs[static_cast<std::size_t>(share.spec)].name},
                        {"rank", share.rank},
                        {"rows", {share.row_begin, share.row_end}},
                        {"cols", {share.col_begin, share.col_end}},
                        {"cost", share.cost},
                        {"together", share.ranks}});
  return shares;
}

Json model_json(const Options& options) {
  return {{"parameters", parameter_count(options.model)},
          {"active_parameters", active_count(options.model)},
          {"trainable", trainable_count(options.model)},
          {"tensors", sum_over_tensors(options.model, [](const TensorSpec&) { return 1; })}};
}

Json ownership_json(const RunPlan& run) {
  const Plan& plan = run.plan;
  Json buckets = Json::array(), scalar_buckets = Json::array(), sent = Json::array();
  for (auto stage = plan.stages.rbegin(); stage != plan.stages.rend(); ++stage) {
    for (const BucketLayout& bucket : stage->buckets) buckets.push_back(names_of(*stage, bucket.specs));
    for (const BucketLayout& bucket : stage->scalar_buckets)
      scalar_buckets.push_back({{"tensors", names_of(*stage, bucket.specs)}, {"cuts", bucket.cut}});
  }
  for (const Collective& c : run.sent)
    sent.push_back({{"operation", c.operation},
                    {"group", c.group},
                    {"what", c.what},
                    {"count", c.count},
                    {"bytes", c.bytes},
                    {"between_nodes_bytes", json_of(between_nodes_bytes(c, run.options))}});
  Json out = {{"owners", ranks_by_name(plan, &StagePlan::owner)}, {"shard", name(plan.input.parallel.shard)}};
  if (plan.tp > 1) {
    out["hosts"] = ranks_by_name(plan, &StagePlan::home);
    out["micro_groups"] = micro_groups_json(plan);
  }
  if (run.options.parallel.partition == ParallelOptions::Partition::groups) out["shares"] = shares_json(plan);
  out["buckets"] = buckets;
  out["scalar_buckets"] = scalar_buckets;
  out["collectives"] = sent;
  return out;
}

Json updates_json(const Plan& plan) {
  Json rows = Json::array();
  for (const UpdateRow& row : update_table(plan))
    rows.push_back({{"pattern", row.pattern},
                    {"tensors", row.tensors},
                    {"shape", row.shape},
                    {"rule", row.rule},
                    {"split", row.split},
                    {"owner", ranks_text(row.owners)},
                    {"lr", row.lr},
                    {"weight_decay", row.weight_decay}});
  return rows;
}

// Returns the actions of one update of each rank, [what, stage, micro-batch, begin, end] in units of a forward pass.
Json pipeline_json(const RunPlan& run) {
  static constexpr const char* words[] = {"forward", "backward", "backward_input", "backward_weight", "update"};
  Json ranks = Json::array(), delays = Json::array(), layers = Json::array();
  for (const auto& actions : run.plan.schedule.ranks) {
    Json list = Json::array();
    for (const Action& action : actions)
      list.push_back({words[static_cast<int>(action.kind)], action.stage, action.micro, action.begin, action.end});
    ranks.push_back(list);
  }
  for (int stage = 0; stage < run.plan.pp; ++stage) {
    const LayerRange range = run.plan.stages[static_cast<std::size_t>(stage)].layers;
    delays.push_back(update_delay(run.plan.pipe, stage));
    layers.push_back({range.begin, range.end});
  }
  Json refreshes = nullptr;  // by stage, of each matrix in so many updates
  if (run.plan.stages[0].refresh_window > 0) {
    refreshes = {{"window", run.plan.stages[0].refresh_window}, {"counts", Json::array()}};
    for (const StagePlan& stage : run.plan.stages) refreshes["counts"].push_back(stage.refreshes);
  }
  return {{"schedule", name(run.options.parallel.schedule)},
          {"stages", run.plan.pp},
          {"layers", layers},
          {"micro_batches", run.plan.pipe.micros},
          {"bubble", run.plan.schedule.bubble},
          {"in_flight", run.plan.schedule.slots},
          {"delays", delays},
          {"refreshes", refreshes},
          {"actions", ranks}};
}

Json to_json(const RunPlan& run) {
  const Plan& plan = run.plan;
  const auto& compared = run.compared;
  Json out = {{"model", model_json(run.options)},
              {"parallel", {{"dp", plan.dp}, {"tp", plan.tp}, {"pp", plan.pp}, {"ep", run.options.parallel.ep}}},
              {"ranks", ranks_json(run)},
              {"ratios",
               {{"dp",
                 {{"cost", plan.dp_cost.ratio},
                  {"elements", plan.dp_elements.ratio},
                  {"bound", plan.dp_cost.bound},
                  {"received", plan.dp_received.ratio},
                  {"received_bound", plan.dp_received.bound}}},
                {"hosts", {{"cost", plan.home_cost.ratio}, {"bound", plan.home_cost.bound}}},
                {"machine", {{"ratio", plan.machine_cost.ratio}, {"bound", plan.machine_cost.bound}}}}}};
  if (plan.pp > 1) out["pipeline"] = pipeline_json(run);
  if (run.options.optimizer.refresh.automatic)  // by matrix; null: the machine is not known
    out["refresh_periods"] = run.refresh_periods ? Json(run.refresh_periods->of) : Json(nullptr);
  if (run.options.optimizer.refresh.fits_staleness)
    out["refresh_staleness"] = run.refresh_lag ? Json(run.refresh_lag->updates) : Json(nullptr);
  if (run.options.optimizer.refresh.chooses_executor)  // by matrix: 1 in the update; null: the machine is not known
    out["refresh_in_update"] = run.refresh_executors ? Json(run.refresh_executors->in_update) : Json(nullptr);
  out["updates"] = updates_json(plan);
  out.update(ownership_json(run));
  if (const CoherencePlan& coherence = plan.coherence; coherence.blocks > 0) {
    out["coherence"] = {{"matrices", coherence.blocks},
                        {"bytes", coherence.synchronisation.sent},
                        {"between_nodes_bytes", coherence.synchronisation.between_nodes},
                        {"synchronisations_per_update", coherence.synchronisations},
                        {"bytes_per_update", coherence.bytes_per_update()}};
    if (coherence.sketches > 0) {
      out["coherence"]["sketch_bytes"] = coherence.sketch.sent;
      out["coherence"]["sketches_per_update"] = coherence.sketches;
    }
  }
  out.update({{"flops_per_token", run.flops_per_token},
              {"flops_per_step", run.flops_per_step},
              {"tokens_per_step", run.tokens_per_step},
              {"steps", run.options.run.steps},
              {"memory",
               {{"needed_bytes", run.needed_bytes},
                {"available_bytes", compared.empty() ? Json(nullptr) : Json(compared.front().available)},
                {"compared_with", compared.empty() ? Json(nullptr) : Json(compared.front().name)},
                {"fits", compared.empty() ? Json(nullptr)
                                          : Json(std::all_of(compared.begin(), compared.end(),
                                                             [](const auto& memory) { return memory.fits(); }))}}},
              {"estimate",
               {{"step_s", json_of(run.step_s())},
                {"forward_backward_s", json_of(run.forward_backward_s)},
                {"optimizer_s", json_of(run.optimizer_s)},
                {"network_s", json_of(run.network_s)},
                {"checkpoint_s", json_of(run.checkpoint_s)},
                {"nvme_s", json_of(run.nvme_s)},
                {"link_s", json_of(run.link_s)},
                {"refresh_s", json_of(run.refresh_s)},
                {"first_bases_s", json_of(run.first_bases_s)}}},
              {"measured",
               {{"shapes", run.measured.shapes},
                {"measured", run.measured.measured},
                {"host", run.options.machine.host.empty() ? Json(nullptr) : Json(run.options.machine.host)}}},
              {"refresh_flops", json_of(run.refresh_flops)},
              {"refresh_ratio", json_of(run.refresh_ratio)},
              {"first_bases_flops", run.first_bases_flops},
              {"link", {{"refreshes_bytes", run.link.refreshes}, {"tiers_bytes", run.link.tiers}}},
              {"planning_s", run.planning_s}});
  return out;
}

Json rows_json(const std::vector<ReadingRow>& rows) {
  Json out = Json::array();
  for (const ReadingRow& row : rows)
    out.push_back({{"plan", row.plan}, {"flops", row.flops}, {"elements", row.elements}});
  return out;
}

}  // namespace

void print_json(const RunPlan& run) { fmt::print("{}\n", to_json(run).dump(2)); }

void print_json(const PaperReading& reading) {
  const Json out = {{"dp", rows_json(reading.dp)},
                    {"dp_bound", reading.dp_bound},
                    {"hosts_of_rank_0", rows_json(reading.homes)},
                    {"hosts_of_any_rank", {{"least", reading.homes_least}, {"most", reading.homes_most}}},
                    {"all_homes", rows_json(reading.all_homes)},
                    {"all_homes_bound", reading.all_homes_bound}};
  fmt::print("{}\n", out.dump(2));
}

}  // namespace sestina

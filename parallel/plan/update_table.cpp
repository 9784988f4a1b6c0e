#include "parallel/plan/update_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>

#include "core/optimizer/base/routing.hpp"
#include "parallel/plan/expert_owners.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

std::vector<int> owners_of(const Plan& plan, int number, int spec) {
  const StagePlan& stage = plan.stages[at(number)];
  const int first = plan.pipe.rank_of(number) * plan.dp * plan.tp, owner = stage.owner[at(spec)];
  const bool homed = is_homed(stage, spec, plan.input.parallel);
  std::vector<int> ranks;
  for (const MatrixShare& share : stage.shares)
    if (share.spec == spec) ranks.push_back(first + share.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (int dp_rank = 0; dp_rank < plan.dp; ++dp_rank)
    for (int tp_rank = 0; tp_rank < plan.tp; ++tp_rank)
      if ((owner == scalar_tensor || is_owner(stage, spec, plan.input, dp_rank)) &&
          (!homed || is_home(stage, spec, tp_rank)))
        ranks.push_back(first + dp_rank * plan.tp + tp_rank);
  return ranks;
}

bool is_slab(const Plan& plan, const StagePlan& stage, int spec) {
  const TensorSpec& tensor = stage.specs[at(spec)];
  return plan.tp > 1 && stage.is_matrix(spec) && !is_sharded(tensor, plan.input) &&
         !is_homed(stage, spec, plan.input.parallel) &&
         local_shape(tensor, plan.input.model, plan.tp, 0).elements() < tensor.elements();
}

// Returns ranks as a column has room for: "64 of 0-511" where they are many pieces.
std::string short_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t room = 12;
  const std::string text = ranks_text(ranks);
  return text.size() <= room ? text : fmt::format("{} of {}-{}", ranks.size(), ranks.front(), ranks.back());
}

std::vector<int> united(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

}  // namespace

UpdateRow update_row(const Plan& plan, int stage, int spec) {
  const StagePlan& planned = plan.stages[at(stage)];
  const TensorSpec& tensor = planned.specs[at(spec)];
  const OptimizerOptions& optimizer = plan.input.optimizer;
  const TensorRates rates = rates_of(tensor, optimizer);
  UpdateRow row;
  row.pattern = name_of_all_layers(tensor);
  row.shape = tensor.is_vector() ? std::vector{tensor.rows} : std::vector{tensor.rows, tensor.cols};
  row.rule = rule_of(tensor, optimizer);
  row.split = split_of(tensor, optimizer);
  if (row.split == "whole" && is_slab(plan, planned, spec)) row.split = "slabs";
  row.owners = owners_of(plan, stage, spec);
  row.lr = rates.lr;
  row.weight_decay = rates.weight_decay;
  return row;
}

std::vector<UpdateRow> update_table(const Plan& plan) {
  std::vector<UpdateRow> rows;
  std::map<std::tuple<std::string, std::string, double, double>, std::size_t> places;
  for (int stage = 0; stage < plan.pp; ++stage)
    for (int spec = 0; spec < static_cast<int>(plan.stages[at(stage)].specs.size()); ++spec) {
      if (!plan.stages[at(stage)].specs[at(spec)].trainable) continue;
      UpdateRow row = update_row(plan, stage, spec);
      const auto [place, is_new] =
          places.try_emplace({row.pattern, row.rule + row.split, row.lr, row.weight_decay}, rows.size());
      if (is_new) {
        rows.push_back(std::move(row));
        continue;
      }
      UpdateRow& known = rows[place->second];
      known.owners = united(known.owners, row.owners);
      ++known.tensors;
    }
  return rows;
}

std::string ranks_text(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t begin = 0; begin < ascending.size();) {
    std::size_t end = begin + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    text += text.empty() ? "" : ", ";
    text += end - begin == 1 ? fmt::format("{}", ascending[begin])
                             : fmt::format("{}-{}", ascending[begin], ascending[end - 1]);
    begin = end;
  }
  return text;
}

std::vector<std::string> table_lines(const std::vector<UpdateRow>& rows) {
  constexpr std::size_t columns = 7;
  using Cells = std::array<std::string, columns>;
  std::vector<Cells> table = {{"tensors", "shape", "rule", "split", "ranks", "peak lr", "decay"}};
  for (const UpdateRow& row : rows)
    table.push_back({row.pattern, fmt::format("{}", fmt::join(row.shape, " x ")), row.rule, row.split,
                     short_ranks(row.owners), fmt::format("{:.4g}", row.lr), fmt::format("{:.4g}", row.weight_decay)});
  std::array<std::size_t, columns> width{};
  for (const Cells& cells : table)
    for (std::size_t c = 0; c < columns; ++c) width[c] = std::max(width[c], cells[c].size());
  std::vector<std::string> lines;
  for (const Cells& cells : table) {
    std::string line;
    for (std::size_t c = 0; c + 1 < columns; ++c) line += fmt::format("{:{}}  ", cells[c], width[c]);
    lines.push_back(line + cells[columns - 1]);
  }
  return lines;
}

}  // namespace sestina

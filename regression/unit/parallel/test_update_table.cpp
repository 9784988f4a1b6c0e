// The table of updates: rules, matrices, ranks and rates of all tensors, folded over layers.
#include "parallel/plan/update_table.hpp"

#include <gtest/gtest.h>

#include "plan_rig.hpp"

namespace sestina {
namespace {

const UpdateRow& row_of(const std::vector<UpdateRow>& rows, const std::string& pattern) {
  static const UpdateRow none;
  for (const UpdateRow& row : rows)
    if (row.pattern == pattern) return row;
  ADD_FAILURE() << pattern;
  return none;
}

std::vector<int> ranks(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(UpdateTable, RanksAreRuns) {
  EXPECT_EQ(ranks_text({}), "");
  EXPECT_EQ(ranks_text({3}), "3");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 6, 8, 9}), "0-3, 6, 8-9");
}

TEST(UpdateTable, NamesRuleSplitAndRates) {
  Options options = plan_options(small_model(), "muon", 1);
  options.optimizer.lr = 0.02;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.adamw.lr = 0.003;
  options.optimizer.per_head = true;
  options.optimizer.group.push_back({.match = "*.0.mlp.down_proj*", .kind = "adamw"});
  const std::vector<UpdateRow> rows = update_table(make_plan(options));
  const UpdateRow& up = row_of(rows, "model.layers.*.mlp.up_proj.weight");
  EXPECT_EQ(up.shape, (std::vector<std::int64_t>{options.model.intermediate_size, options.model.hidden_size}));
  EXPECT_EQ(up.rule + ", " + up.split, "muon, whole");
  EXPECT_EQ(up.owners, ranks(1));
  EXPECT_EQ(up.tensors, 3);
  EXPECT_EQ(up.lr, 0.02);
  EXPECT_EQ(up.weight_decay, 0.1);
  EXPECT_EQ(row_of(rows, "model.layers.*.self_attn.q_proj.weight").split, "heads");
  const UpdateRow& norm = row_of(rows, "model.layers.*.input_layernorm.weight");
  EXPECT_EQ(norm.rule + ", " + norm.split, "adamw, elements");
  EXPECT_EQ(norm.shape.size(), 1u);
  EXPECT_EQ(norm.lr, 0.003);
  EXPECT_EQ(norm.weight_decay, 0);
  std::vector<std::string> down;  // a row for the layer that a group gives away, one for the rest
  for (const UpdateRow& row : rows)
    if (row.pattern == "model.layers.*.mlp.down_proj.weight")
      down.push_back(fmt::format("{} {}", row.rule, row.tensors));
  EXPECT_EQ(down, (std::vector<std::string>{"adamw 1", "muon 2"}));
}

TEST(UpdateTable, OwnersAreThoseOfThePlan) {
  Options options = plan_options(small_model(), "muon", 2, 2);
  const std::string up = "model.layers.*.mlp.up_proj.weight";
  const Plan plan = make_plan(options);
  const UpdateRow one = update_row(plan, 0, 7);
  EXPECT_EQ(one.owners, (std::vector<int>{plan.stages[0].owner[7] * 2 + plan.stages[0].home[7]})) << one.pattern;
  EXPECT_EQ(one.rule, "muon");
  EXPECT_EQ(row_of(update_table(plan), "model.embed_tokens.weight").owners, ranks(4));

  using TpUpdate = ParallelOptions::TpUpdate;
  options.parallel.partition = ParallelOptions::Partition::replicated;
  for (const auto& [update, split] :
       {std::pair{TpUpdate::duplicated, "whole"}, std::pair{TpUpdate::distributed, "whole"},
        std::pair{TpUpdate::blockwise, "slabs"}}) {
    options.parallel.tp_update = update;
    const std::vector<UpdateRow> rows = update_table(make_plan(options));
    EXPECT_EQ(row_of(rows, up).owners, ranks(4)) << split;
    EXPECT_EQ(row_of(rows, up).split, split);
  }
}

TEST(UpdateTable, StagesOwnTheirLayers) {
  Options options = plan_options(small_model(), "muon", 1);
  options.parallel.pp = 3;
  options.train.micro_batch = 1;
  const std::vector<UpdateRow> rows = update_table(make_plan({options, 3}));
  EXPECT_EQ(row_of(rows, "model.layers.*.mlp.up_proj.weight").owners, ranks(3));
  EXPECT_EQ(row_of(rows, "model.embed_tokens.weight").owners, ranks(1));
  EXPECT_EQ(row_of(rows, "model.norm.weight").owners, (std::vector<int>{2}));
}

TEST(UpdateTable, LinesAreInColumns) {
  UpdateRow row;
  row.pattern = "model.norm.weight";
  row.shape = {64, 32};
  row.rule = "muon";
  row.split = "whole";
  row.owners = {0, 1};
  row.lr = 0.02;
  row.weight_decay = 0.1;
  EXPECT_EQ(table_lines({row}),
            (std::vector<std::string>{"tensors            shape    rule  split  ranks  peak lr  decay",
                                      "model.norm.weight  64 x 32  muon  whole  0-1    0.02     0.1"}));
  row.owners = {1, 3, 5, 7, 9, 11};  // many pieces are counted
  EXPECT_NE(table_lines({row}).back().find("  6 of 1-11  "), std::string::npos);
}

}  // namespace
}  // namespace sestina

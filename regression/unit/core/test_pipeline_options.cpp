// Sections of the deck as structs: stages, their schedules and what asynchronous ones need.
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

TEST(Options, PipelinesSayWhatConflicts) {
  const auto deck = [](const std::string& parallel, const std::string& rest = "") {
    return "[parallel]\npp = 2\n" + parallel + rest;
  };
  expect_error(deck("placement = \"block\"\nschedule = \"interleaved\"\n"), "parallel.placement: conflicts with");
  expect_error(deck("clip_scope = \"global\"\nschedule = \"async-1f1b\"\n"), "parallel.clip_scope: conflicts with");
  expect_error("[parallel]\npp = 9\n[model]\npreset = \"llama-8m\"\n", "parallel.pp: more pipeline stages than layers");
  EXPECT_EQ(read(deck("schedule = \"interleaved\"\n")).parallel.placement, ParallelOptions::Placement::round_robin);
  EXPECT_EQ(read(deck("schedule = \"async-1f1b\"\n")).parallel.clip_scope, ParallelOptions::ClipScope::stage);
  EXPECT_FALSE(read("[parallel]\nschedule = \"async-1f1b\"\n").parallel.is_async());
}

// A stage is so many micro-batches late, and the data-parallel ranks of a stage must be as late as each other.
TEST(Options, AsynchronousRanksShareTheBatchEvenly) {
  const auto resolved = [](const std::string& schedule, int global, int micro) {
    Deck deck;
    deck.add_text(model + fmt::format("[parallel]\npp = 2\ndp = 3\n{}[train]\nglobal_batch = {}\nmicro_batch = {}\n",
                                      schedule, global, micro),
                  "deck", "");
    Options options = Options::read(deck);
    require_trainable(deck, options);
    deck.finish();
    return options.train.micro_batch;
  };
  const std::string async = "schedule = \"async-1f1b\"\n";
  EXPECT_EQ(resolved(async, 12, 0), 4);
  EXPECT_EQ(resolved(async, 12, 2), 2);
  EXPECT_EQ(resolved("", 8, 0), 2);
  EXPECT_EQ(resolved("", 8, 2), 2);  // shares of 1, 1 and 2 micro-batches
  const auto refused = [&](int global, int micro, const std::string& words) {
    try {
      resolved(async, global, micro);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_deck);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused(8, 0, "train.global_batch: parallel.schedule = \"async-1f1b\" needs the same share for all ranks");
  refused(12, 3, "train.micro_batch: 4 micro-batches for parallel.dp = 3 ranks");
}

// Where one data-parallel rank rounds its weights for each pass, what keeps whole weights cannot be had.
TEST(Options, WeightsThatAreRoundedForEachPass) {
  const auto refusal = [](const std::string& precision, const std::string& text) {
    Deck deck;
    deck.add_text(model + "[train]\nglobal_batch = 8\nmicro_batch = 1\nprecision = \"" + precision +
                      "\"\n[parallel]\nshard = \"weights\"\n" + text,
                  "deck", "");
    Options options = Options::read(deck);
    require_trainable(deck, options);
    return complaint(deck);
  };
  const std::string async = "pp = 2\nschedule = \"async-1f1b\"\n", groups = "tp = 2\npartition = \"groups\"\n",
                    audits = "[run]\ndeterministic = true\naudit_every = 5\n";
  EXPECT_EQ(refusal("bf16", "tp = 2\npp = 2\n"), "");
  for (const std::string& text : {async, groups}) {
    EXPECT_NE(refusal("bf16", text).find("parallel.shard: conflicts with parallel."), std::string::npos) << text;
    EXPECT_EQ(refusal("fp32", text), "") << text;
  }
  EXPECT_NE(refusal("bf16", audits).find("run.audit_every: conflicts with parallel.shard"), std::string::npos);
  EXPECT_EQ(refusal("fp32", audits), "");
}

// Bases of the cut side need directions where it is whole, which sends more than whole gradients to homes do
// (inputs/README.md has the sum); scores of passes in flight are found again under stashed weights alone.
TEST(Options, BasesOfCutSidesAndScoresWithoutAStashCannotBeHad) {
  const auto refusal = [](const std::string& text) {
    Deck deck;
    deck.add_text(model + "[train]\nglobal_batch = 8\nmicro_batch = 1\n" + text, "deck", "");
    Options options = Options::read(deck);
    require_trainable(deck, options);
    return complaint(deck);
  };
  const std::string soap_muon = "[optimizer]\nkind = \"soap-muon\"\n[parallel]\ntp = 2\n",
                    clip = "[optimizer]\nqk_clip = 100\n[parallel]\npp = 2\nschedule = \"async-1f1b\"\n";
  EXPECT_NE(
      refusal(soap_muon + "tp_update = \"distributed\"\n")
          .find(
              "distributed is implemented for muon, normuon, adamuon, not for soap-muon, whose bases turn the cut side "
              "too: it would send more than home"),
      std::string::npos);
  EXPECT_EQ(refusal(soap_muon + "partition = \"groups\"\n"), "");
  EXPECT_EQ(refusal(clip), "");
  EXPECT_NE(refusal(clip + "stash = \"recompute\"\n").find("optimizer.qk_clip: conflicts with parallel.stash"),
            std::string::npos);
}

TEST(Options, ShardsOfGradientsAndWeightsSayWhatConflicts) {
  const auto deck = [](const std::string& parallel, const std::string& rest = "") {
    return model + "[train]\nglobal_batch = 8\nmicro_batch = 1\n[parallel]\ndp = 4\n" + parallel + rest;
  };
  const auto resolve = [](const std::string& text) {
    Deck deck;
    deck.add_text(text, "deck", "");
    Options options = Options::read(deck);
    require_trainable(deck, options);
    deck.finish();
  };
  const auto refused = [&](const std::string& text, const std::string& words) {
    try {
      resolve(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_deck);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const std::string gradients = "shard = \"gradients\"\n", weights = "shard = \"weights\"\n";
  for (const std::string& shard : {gradients, weights}) {
    EXPECT_NO_THROW(resolve(deck(shard)));
    refused(deck(shard + "partition = \"replicated\"\n"), "parallel.shard: conflicts with parallel.partition");
    refused(deck(shard + "bucket_elements = 5\n"), "parallel.shard: conflicts with parallel.bucket_elements");
    refused(deck(shard + "pp = 2\nschedule = \"zb-h1\"\n"), "parallel.shard: conflicts with parallel.schedule");
    refused(deck(shard + "pp = 2\nschedule = \"async-1f1b\"\n"), "parallel.shard: conflicts with parallel.schedule");
  }
  const std::string audited = "[run]\naudit_every = 2\ndeterministic = true\n";
  EXPECT_NO_THROW(resolve(deck(gradients, audited)));
  refused(deck(weights, audited), "run.audit_every: conflicts with parallel.shard");
  refused(model + "[train]\nglobal_batch = 10\nmicro_batch = 1\n[parallel]\ndp = 4\n" + gradients,
          "train.global_batch: parallel.shard = \"gradients\" or \"weights\" needs the same share");
  EXPECT_NO_THROW(resolve(deck("shard = \"state\"\npartition = \"replicated\"\n")));
}

TEST(Options, CorrectionsOfDelaysSayWhatTheyNeed) {
  const auto deck = [](const std::string& parallel, const std::string& rest = "") {
    return "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n" + parallel + rest;
  };
  const auto corrected = [&](const std::string& kind, const std::string& rest = "") {
    return deck("delay_correction = \"" + kind + "\"\n", rest);
  };
  using Kind = ParallelOptions::DelayCorrection;
  expect_error("[parallel]\npp = 2\ndelay_correction = \"prediction\"\n",
               "parallel.delay_correction: needs parallel.schedule = \"async-1f1b\"");
  expect_error(corrected("prediction", "stash = \"saved\"\n"),
               "parallel.delay_correction: needs parallel.stash = \"on\"");
  expect_error(corrected("dc-asgd", "stash = \"recompute\"\ndc_lambda = 1\n"),
               "parallel.delay_correction: needs parallel.stash = \"on\"");
  expect_error(corrected("dc-asgd"), "parallel.dc_lambda: required");
  expect_error(corrected("pipemare"), "parallel.delay_correction: needs parallel.stash = \"saved\"");
  for (const char* kind : {"nesterov", "pipemare"})
    expect_error(corrected(kind, "stash = \"saved\"\n[optimizer]\nkind = \"muon\"\n"),
                 "parallel.delay_correction: needs optimizer.kind = \"adamw\"");
  expect_error(corrected("prediction", "correction_steps = 5\n"),
               "parallel.correction_steps: needs parallel.delay_correction = \"pipedream-lr\" or \"pipemare\"");
  expect_error(corrected("none", "momentum_decay = 0.1\n"),
               "parallel.momentum_decay: needs parallel.delay_correction = \"nesterov\"");
  const std::string horizon = "[schedule]\nsteps = 2000\n";
  EXPECT_EQ(read(corrected("pipedream-lr", horizon)).parallel.correction.steps, 56);  // 2.8 %
  EXPECT_EQ(read(corrected("pipedream-lr")).parallel.correction.steps, 7000);
  EXPECT_DOUBLE_EQ(read(corrected("nesterov", horizon)).optimizer.adamw.momentum_decay.value(), 0.1);
  EXPECT_FALSE(read(corrected("prediction")).optimizer.adamw.momentum_decay.has_value());
  const auto mare = read(corrected("pipemare", "stash = \"saved\"\npipemare_decay = 0.5\npipemare_warmup = 9\n"));
  EXPECT_EQ(mare.parallel.correction.kind, Kind::pipemare);
  EXPECT_EQ(mare.parallel.correction.decay, 0.5);
  EXPECT_EQ(mare.parallel.correction.warmup, 9);
  expect_error("[parallel]\npp = 2\nclip_scope = \"global-lagged\"\n", "parallel.clip_scope: needs parallel.schedule");
  EXPECT_EQ(read(deck("clip_scope = \"global-lagged\"\n")).parallel.clip_scope,
            ParallelOptions::ClipScope::global_lagged);
  EXPECT_EQ(read("[parallel]\npp = 2\nclip_scope = \"group\"\n").parallel.clip_scope,
            ParallelOptions::ClipScope::group);
}

TEST(Options, RefreshesAreSharedOutAmongStages) {
  const auto deck = [](const std::string& kind, const std::string& keys, const std::string& more = "") {
    return "[optimizer]\nkind = \"" + kind + "\"\n" + more + "[optimizer.refresh]\n" + keys;
  };
  const RefreshOptions refresh = read(deck("soap", "budget = \"stage-aware\"\nbudget_power = 2\n")).optimizer.refresh;
  EXPECT_EQ(refresh.budget, RefreshOptions::Budget::stage_aware);
  EXPECT_EQ(refresh.budget_power, 2);
  expect_error(deck("soap", "budget_power = 2\n"), "optimizer.refresh.budget_power: needs optimizer.refresh.budget");
  expect_error(deck("apollo", "budget = \"reversed\"\n"), "optimizer.refresh.budget: kind = \"apollo\" has no refresh");
  expect_error(deck("basis-rotation", "budget = \"reversed\"\n", "dialect = \"release\"\n"),
               "optimizer.refresh.budget: conflicts with optimizer.dialect");
}

TEST(Options, StagesAreCutByHand) {
  const auto deck = [](const std::string& layers) { return "[parallel]\npp = 3\nstage_layers = " + layers + "\n"; };
  EXPECT_EQ(read(deck("[1, 5, 2]")).parallel.stage_layers, (std::vector<int>{1, 5, 2}));
  EXPECT_TRUE(read(deck("[]")).parallel.stage_layers.empty());
  expect_error(deck("[4, 4]"), "parallel.stage_layers: 2 numbers for parallel.pp = 3 stages, got [4, 4]");
  expect_error(deck("[4, 3, 2]"), "parallel.stage_layers: 9 layers in all, got [4, 3, 2], allowed a sum of");
  expect_error(deck("[0, 4, 4]"), "parallel.stage_layers: out of range");
}

TEST(Options, AnAsynchronousPipelineKeepsItsDelaysOnAResume) {
  const auto changed = [](const std::string& now) {
    const auto deck = [](const std::string& text) {
      Deck deck;
      deck.add_text("[parallel]\npp = 2\nschedule = \"async-1f1b\"\n" + text, "deck", "");
      Options::read(deck);
      return deck;
    };
    std::vector<std::string> keys;
    for (const DeckDifference& difference : forbidden_changes(deck(""), deck(now))) keys.push_back(difference.key);
    return keys;
  };
  EXPECT_EQ(changed("delay_scale = 2\n"), std::vector<std::string>{"parallel.delay_scale"});
  EXPECT_EQ(changed("stash = \"recompute\"\n"), std::vector<std::string>{"parallel.stash"});
  EXPECT_EQ(changed("dp = 2\n"), std::vector<std::string>{"parallel.dp"});
  EXPECT_EQ(changed("delay_correction = \"prediction\"\n"), std::vector<std::string>{"parallel.delay_correction"});
  EXPECT_EQ(changed("clip_scope = \"group\"\n"), std::vector<std::string>{"parallel.clip_scope"});
  EXPECT_EQ(changed("[train]\nmicro_batch = 2\n"), std::vector<std::string>{"train.micro_batch"});
  EXPECT_TRUE(changed("tp = 2\nbucket_elements = 1000\n").empty());
}

}  // namespace
}  // namespace sestina

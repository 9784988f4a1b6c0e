// [optimizer.refresh]: when preconditioners are computed, by whom, where they lie, and what goes with what.
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

TEST(Options, AsynchronousRefreshesFitIntoTheirPeriod) {
  const std::string soap = "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\n", async = "mode = \"async\"\n";
  const auto late = [&](const std::string& keys) {
    return read(soap + async + keys).optimizer.matrix->refresh_staleness;
  };
  EXPECT_EQ(late(""), 5);
  EXPECT_EQ(late("every = 3\n"), 2);
  EXPECT_EQ(late("every = 1\n"), 0);
  EXPECT_EQ(late("staleness = 9\n"), 9);
  EXPECT_FALSE(read(soap + async).optimizer.matrix->refresh_eager);
  const OptimizerOptions o =
      read(soap + async + "visibility = \"eager\"\nworkers = 3\ncores = [2, 5]\npriority = 4\n").optimizer;
  EXPECT_TRUE(o.matrix->refresh_eager);
  EXPECT_EQ(o.refresh_workers(), 3);
  EXPECT_EQ(o.refresh.cores, (std::vector<int>{2, 5}));
  EXPECT_EQ(read(soap + async + "staleness = 0\n").optimizer.refresh_workers(), 0);
  EXPECT_EQ(read(soap).optimizer.refresh_workers(), 0);

  expect_error(soap + async + "every = 4\nstaleness = 4\n",
               "optimizer.refresh.staleness: a refresh would fall due before the previous one");
  expect_error(soap + "staleness = 2\n", "optimizer.refresh.staleness: needs optimizer.refresh.mode = \"async\"");
  expect_error(soap + "mode = \"inline\"\nworkers = 2\n", "optimizer.refresh.workers: needs");
  expect_error(soap + async + "cores = [-1]\n", "optimizer.refresh.cores: out of range");
  expect_error(soap + async + "cores = \"all\"\n", "optimizer.refresh.cores: wrong type");
  expect_error("[optimizer]\nkind = \"basis-rotation\"\ndialect = \"release\"\n[optimizer.refresh]\n" + async,
               "optimizer.refresh.mode: conflicts with optimizer.dialect = \"release\"");
  expect_error("[optimizer]\nkind = \"apollo\"\n[optimizer.refresh]\n" + async, "has no refresh that a worker could");
}

TEST(Options, SnapshotsOfFactorsMayBeInBf16) {
  const auto refresh = [](const std::string& kind, const std::string& keys) {
    return "[optimizer]\nkind = \"" + kind + "\"\n[optimizer.refresh]\n" + keys;
  };
  const std::string async = "mode = \"async\"\n", narrow = "snapshot = \"bf16\"\n";
  EXPECT_FALSE(read(refresh("soap", async)).optimizer.matrix->snapshot_bf16);
  for (const std::string kind : {"soap", "shampoo", "kl-shampoo"})
    EXPECT_TRUE(read(refresh(kind, async + narrow)).optimizer.matrix->snapshot_bf16) << kind;
  expect_error(refresh("soap", narrow), "optimizer.refresh.snapshot: needs optimizer.refresh.mode = \"async\"");
  expect_error(refresh("galore", async + narrow), "copies a gradient, and no symmetric factor");
  expect_error(refresh("soap", async + "snapshot = \"fp16\"\n"), "optimizer.refresh.snapshot");
}

TEST(Options, TiersAreOneWordOrATableByField) {
  const std::string soap = "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\n", late = soap + "mode = \"async\"\n";
  const auto matrix = [](const std::string& toml) { return *read(toml).optimizer.matrix; };
  EXPECT_FALSE(matrix(soap).pages_any(MemorySpace::host));
  EXPECT_EQ(matrix(soap).tier, Tier::device);
  EXPECT_TRUE(matrix(soap + "tier = \"nvme\"\n").pages("basis_left", MemorySpace::host));
  const MatrixOptions one = matrix(late + "tier = { basis_left = \"nvme\", snapshot_right = \"nvme\" }\n");
  for (const std::string field :
       {"factor_left", "factor_right", "basis_left", "basis_right", "snapshot_left", "snapshot_right"})
    EXPECT_EQ(one.pages(field, MemorySpace::host), field == "basis_left" || field == "snapshot_right") << field;
  EXPECT_TRUE(one.pages("block_0_1.basis_left", MemorySpace::host));
  const MatrixOptions most = matrix(soap + "tier = { default = \"nvme\", factor_right = \"host\" }\n");
  EXPECT_TRUE(most.pages("factor_left", MemorySpace::host));
  EXPECT_FALSE(most.pages("factor_right", MemorySpace::host));
  EXPECT_FALSE(matrix(soap + "tier = { default = \"host\" }\n").pages_any(MemorySpace::host));
  const MatrixOptions factors = matrix(soap + "tier = { default = \"device\", factor_left = \"host\" }\n");
  EXPECT_FALSE(factors.pages_any(MemorySpace::host)) << "a host has no other memory";
  EXPECT_TRUE(factors.pages_any(MemorySpace::device));
  for (const std::string field : {"factor_left", "factor_right", "basis_left", "basis_right"})
    EXPECT_EQ(factors.pages(field, MemorySpace::device), field == "factor_left") << field;
  expect_error(soap + "tier = { basis_lef = \"nvme\" }\n", "did you mean optimizer.refresh.tier.basis_left?");
  expect_error(soap + "tier = { snapshot_left = \"nvme\" }\n", "optimizer.refresh.tier.snapshot_left");  // inline
  expect_error(soap + "tier = { basis_left = \"disk\" }\n", "allowed \"device\", \"host\", \"nvme\"");
  expect_error(soap + "tier = \"disk\"\n", "optimizer.refresh.tier");
  Deck deck, again;
  deck.add_text(model + late + "tier = { default = \"nvme\", factor_right = \"host\" }\n", "a.toml", "/folder");
  Options::read(deck);
  deck.finish();
  again.add_text(deck.dump(), "b.toml", "/folder");
  const MatrixOptions read_again = *Options::read(again).optimizer.matrix;
  for (const auto& [field, tier] : read_again.field_tiers)
    EXPECT_EQ(tier, field == "factor_right" ? Tier::host : Tier::nvme) << field;
  EXPECT_EQ(read_again.field_tiers.size(), 6u);
  again.finish();
  again.add_override("optimizer.refresh.tier=host");
  EXPECT_FALSE(Options::read(again).optimizer.matrix->pages_any(MemorySpace::host));
  EXPECT_TRUE(forbidden_changes(deck, again).empty());
}

TEST(Options, UnifiedMemoryIsATierOfDevicesAlone) {
  const std::string soap = "[optimizer]\nkind = \"soap\"\n", tier = "[optimizer.refresh]\ntier = ";
  const OptimizerOptions all = read(soap + "state_tier = \"unified\"\n" + tier + "\"unified\"\n").optimizer;
  EXPECT_TRUE(all.has_tier(Tier::unified));
  EXPECT_FALSE(all.pages_any(MemorySpace::host)) << "a host has no other memory";
  EXPECT_TRUE(all.pages_any(MemorySpace::device));
  EXPECT_EQ(all.matrix->state_tier, Tier::unified);
  EXPECT_TRUE(all.matrix->pages("factor_left", MemorySpace::device));
  const MatrixOptions one = *read(soap + tier + "{ factor_left = \"unified\" }\n").optimizer.matrix;
  EXPECT_EQ(one.tier_of("factor_left"), Tier::unified);
  EXPECT_EQ(one.tier_of("basis_left"), Tier::device);
  EXPECT_TRUE(one.pages_any(MemorySpace::device));
  EXPECT_FALSE(one.pages_any(MemorySpace::host));
  expect_error(soap + tier + "\"managed\"\n", "allowed \"device\", \"host\", \"nvme\", \"unified\"");
  expect_error(soap + "state_tier = \"Unified\"\n", "optimizer.state_tier: unknown value");
}

TEST(Options, MomentsHaveATierOfTheirOwn) {
  const std::string adamw = "[optimizer]\nkind = \"adamw\"\n", away = "state_tier = \"nvme\"\n",
                    store = "[optimizer.refresh]\nhost_bytes = 4096\npath = \"/nvme\"\n";
  const OptimizerOptions o = read(adamw + away + store).optimizer;
  EXPECT_TRUE(o.pages_any(MemorySpace::host));
  EXPECT_TRUE(o.has_tier(Tier::nvme));
  EXPECT_EQ(o.refresh.host_bytes, 4096);
  EXPECT_EQ(o.refresh.path, "/nvme");
  EXPECT_FALSE(read(adamw).optimizer.pages_any(MemorySpace::device));
  const OptimizerOptions host = read(adamw + "state_tier = \"host\"\n").optimizer;
  EXPECT_FALSE(host.pages_any(MemorySpace::host)) << "a host has no other memory";
  EXPECT_TRUE(host.pages_any(MemorySpace::device));
  const OptimizerOptions soap = read("[optimizer]\nkind = \"soap\"\n" + away).optimizer;
  EXPECT_EQ(soap.matrix->state_tier, Tier::nvme);
  EXPECT_FALSE(soap.matrix->pages_any(MemorySpace::host)) << "its preconditioners stay";
  expect_error(adamw + store, "optimizer.refresh: kind = \"adamw\" has no preconditioner to refresh");
  expect_error(adamw + away + "[optimizer.refresh]\nevery = 5\n", "optimizer.refresh.every: unknown key");
  expect_error(adamw + "state_tier = \"disk\"\n", "optimizer.state_tier: unknown value");

  const auto error = [&](const std::string& kind, const std::string& parallel) -> std::string {
    Deck deck;
    deck.add_text(model + "[optimizer]\nkind = \"" + kind + "\"\n" + away + "[parallel]\n" + parallel, "a.toml",
                  "/folder");
    require_state_tier(deck, Options::read(deck));
    return complaint(deck);
  };
  for (const std::string layout : {"tp = 2\ntp_update = \"distributed\"\n", "dp = 2\npartition = \"groups\"\n"}) {
    EXPECT_NE(error("muon", layout).find("optimizer.state_tier: parallel."), std::string::npos) << layout;
    EXPECT_EQ(error("soap", layout), "") << layout;
  }
  EXPECT_EQ(error("muon", "dp = 2\ntp = 2\n"), "");
}

TEST(Options, AutomaticPeriodsNeedWorkers) {
  const std::string soap = "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nevery = \"auto\"\n",
                    async = "mode = \"async\"\n";
  const OptimizerOptions o = read(soap + async).optimizer;
  EXPECT_TRUE(o.refresh.automatic);
  EXPECT_TRUE(o.refresh.stagger);
  EXPECT_EQ(o.matrix->refresh_staleness, 5);
  EXPECT_EQ(o.matrix->refresh_every, 10);  // in estimates
  EXPECT_EQ(read(soap + async + "staleness = 30\n").optimizer.matrix->refresh_staleness, 30);
  EXPECT_FALSE(read("[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nevery = 7\n").optimizer.refresh.automatic);
  expect_error(soap, "optimizer.refresh.every: follows what workers can do: it needs optimizer.refresh.mode");
  expect_error(soap + "mode = \"inline\"\n", "optimizer.refresh.every: follows what workers can do");
  expect_error(soap + async + "staleness = 0\n", "optimizer.refresh.staleness: out of range");
  expect_error(soap + async + "stagger = false\n", "optimizer.refresh.stagger: optimizer.refresh.every = \"auto\"");
  expect_error(soap + async + "budget = \"stage-aware\"\n", "optimizer.refresh.every: conflicts with");
  expect_error("[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nevery = \"often\"\n",
               "optimizer.refresh.every: unknown value, got \"often\", allowed an integer >= 1, \"auto\" or \"drift\"");
}

TEST(Options, StalenessThatWorkersDecideIsAtMostThePeriod) {
  const std::string soap =
      "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\nstaleness = \"auto\"\n";
  const OptimizerOptions o = read(soap + "every = 8\n").optimizer;
  EXPECT_TRUE(o.refresh.fits_staleness);
  EXPECT_EQ(o.matrix->refresh_staleness, 7);
  EXPECT_FALSE(
      read("[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\n").optimizer.refresh.fits_staleness);
  const std::string key = "optimizer.refresh.staleness: ";
  expect_error(soap + "every = 1\n", key + "no result can be late");
  expect_error(soap + "every = \"auto\"\n", key + "conflicts with optimizer.refresh.every");
  expect_error(soap + "visibility = \"eager\"\n", key + "conflicts with optimizer.refresh.visibility");
  expect_error(soap + "executor = \"auto\"\n", key + "conflicts with optimizer.refresh.executor");
  expect_error(soap + "budget = \"stage-aware\"\n", key + "conflicts with optimizer.refresh.budget");
  expect_error("[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\nstaleness = \"soon\"\n", key);
}

TEST(Options, DriftStartsRefreshesOfBases) {
  const auto drift = [](const std::string& kind, const std::string& more = "", const std::string& keys = "") {
    return "[optimizer]\nkind = \"" + kind + "\"\n" + keys + "[optimizer.refresh]\nevery = \"drift\"\n" + more;
  };
  const MatrixOptions usual = *read(drift("soap")).optimizer.matrix;
  EXPECT_EQ(usual.refresh_drift, 0.2);
  EXPECT_EQ(usual.refresh_every, 10);
  for (const std::string kind : {"soap-muon", "kl-soap", "kl-shampoo", "basis-rotation"}) {
    const MatrixOptions o =
        *read(drift(kind, "drift_bound = 0.25\ndrift_check = 7\nstagger = true\n")).optimizer.matrix;
    EXPECT_EQ(o.refresh_drift, 0.25) << kind;
    EXPECT_EQ(o.refresh_every, 7) << kind;
  }
  const std::string async = "mode = \"async\"\n";
  EXPECT_EQ(read(drift("soap", async + "drift_check = 3\n")).optimizer.matrix->refresh_staleness, 2);
  EXPECT_EQ(read("[optimizer]\nkind = \"soap\"\n").optimizer.matrix->refresh_drift, 0);
  expect_error(drift("soap", async + "drift_check = 3\nstaleness = 3\n"), "(optimizer.refresh.drift_check = 3)");
  for (const std::string kind : {"shampoo", "galore", "apollo"})
    expect_error(drift(kind), "optimizer.refresh.every: kind = \"" + kind + "\" refreshes roots or projectors");
  expect_error(drift("soap", "drift_bound = 0\n"), "optimizer.refresh.drift_bound: out of range");
  expect_error(drift("soap", "drift_bound = 1.5\n"), "optimizer.refresh.drift_bound: out of range");
  expect_error(drift("soap", "budget = \"stage-aware\"\n"), "optimizer.refresh.every: conflicts with");
  expect_error(drift("soap", async + "visibility = \"eager\"\n"), "ranks with different bases would decide apart");
  expect_error(drift("basis-rotation", "", "dialect = \"release\"\n"), "optimizer.refresh.every: conflicts with");
  expect_error("[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\ndrift_check = 5\n",
               "optimizer.refresh.drift_check: needs optimizer.refresh.every = \"drift\"");
}

// Replicas may differ for a while (parallel/plan/coherence.hpp); copies of a shard on several ranks of a group may not.
TEST(Options, RanksThatUpdateTheSameMatrixSeeResultsAtTheSameUpdateOrAreMadeAlike) {
  const auto error = [](const std::string& visibility, const std::string& parallel, int heads = 8) -> std::string {
    Deck deck;
    deck.add_text(model + "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\nvisibility = \"" +
                      visibility + "\"\n[parallel]\n" + parallel,
                  "a.toml", "/folder");
    deck.add_override(fmt::format("model.num_key_value_heads={}", heads));
    Options options = Options::read(deck);
    require_trainable(deck, options);
    return complaint(deck);
  };
  const std::string replicated = "dp = 2\npartition = \"replicated\"\n", duplicated = "tp_update = \"duplicated\"\n",
                    blockwise = "tp_update = \"blockwise\"\n", late = "pp = 2\nschedule = \"async-1f1b\"\n",
                    group = "[[optimizer.group]]\nmatch = \"*\"\nkind = ";
  const auto refused = [&](const std::string& layout, int heads = 8) {
    EXPECT_NE(error("eager", layout, heads).find("optimizer.refresh.visibility: ranks that update the same"),
              std::string::npos)
        << layout;
    EXPECT_EQ(error("fixed", layout, heads), "") << layout;
  };
  refused("tp = 2\n" + blockwise, 1);
  refused(replicated + "tp = 2\n" + blockwise, 1);
  refused("tp = 2\n" + blockwise + group + "\"soap\"\n");
  refused("tp = 2\n" + duplicated + late);
  refused(replicated + "tp = 2\n" + duplicated + late);
  for (const std::string& layout :
       {std::string("dp = 2\n"), std::string("tp = 2\n"), replicated, replicated + "pp = 2\nschedule = \"gpipe\"\n",
        replicated + late, replicated + "tp = 2\n", replicated + "tp = 2\n" + late,
        replicated + "tp = 2\n" + duplicated, "tp = 2\n" + duplicated, "dp = 2\ntp = 2\n" + duplicated,
        "tp = 2\n" + blockwise, replicated + "tp = 2\n" + blockwise, replicated + "tp = 2\n" + blockwise + late,
        "tp = 2\n" + blockwise + group + "\"adamw\"\n"})
    EXPECT_EQ(error("eager", layout), "") << layout;
  EXPECT_EQ(error("eager", replicated + "tp = 2\n", 1), "");  // one home for all who hold a shard
}

// A budget of drift is for results that are seen when they are ready; where every matrix has one owner it says nothing.
TEST(Options, ABudgetOfDriftNeedsEagerRefreshes) {
  const auto read = [](const std::string& refresh) {
    Deck deck;
    deck.add_text(model + "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\n" + refresh, "a.toml", "/folder");
    const Options options = Options::read(deck);
    return std::pair(complaint(deck), options.optimizer.refresh.coherence_every);
  };
  const std::string async = "mode = \"async\"\n", eager = async + "visibility = \"eager\"\n",
                    key = "coherence_every = 7\n";
  EXPECT_EQ(read(eager + key), std::pair(std::string(), std::int64_t{7}));
  EXPECT_EQ(read(eager), std::pair(std::string(), std::int64_t{0}));
  EXPECT_NE(read(async + key).first.find("optimizer.refresh.coherence_every: needs optimizer.refresh.visibility"),
            std::string::npos);
  EXPECT_NE(read(key).first.find("optimizer.refresh.coherence_every: needs optimizer.refresh.mode"), std::string::npos);
  EXPECT_NE(read(eager + "coherence_every = -1\n").first.find("coherence_every"), std::string::npos);
  const std::string drift = "coherence_drift = 0.01\n";
  EXPECT_EQ(read(eager + key + drift), std::pair(std::string(), std::int64_t{7}));
  EXPECT_NE(read(async + drift).first.find("optimizer.refresh.coherence_drift: needs optimizer.refresh.visibility"),
            std::string::npos);
  EXPECT_NE(read(drift).first.find("optimizer.refresh.coherence_drift: needs optimizer.refresh.mode"),
            std::string::npos);
  EXPECT_NE(read(eager + "coherence_drift = -1\n").first.find("coherence_drift"), std::string::npos);
}

TEST(Options, AResumeKeepsWhenRefreshesAreSeenAndMayMoveTheirWorkers) {
  const auto differences = [](const std::string& stored, const std::string& now) {
    Deck before, after;
    const std::string common = "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\n";
    before.add_text(common + stored, "stored", ".");
    after.add_text(common + now, "deck", ".");
    Options::read(before);
    Options::read(after);
    std::vector<std::string> keys;
    for (const DeckDifference& d : forbidden_changes(before, after)) keys.push_back(d.key);
    return keys;
  };
  using Keys = std::vector<std::string>;
  const std::string async = "mode = \"async\"\nstaleness = 3\n";
  EXPECT_EQ(differences(async + "workers = 1\n", async + "workers = 2\ncores = [1]\npriority = 5\n"), Keys{});
  EXPECT_EQ(differences(async, "mode = \"async\"\nstaleness = 4\n"), Keys{"optimizer.refresh.staleness"});
  EXPECT_EQ(
      differences(async, async + "visibility = \"eager\"\n"),
      (Keys{"optimizer.refresh.visibility", "optimizer.refresh.coherence_every", "optimizer.refresh.coherence_drift"}));
  EXPECT_EQ(differences(async, async + "every = 7\n"), Keys{"optimizer.refresh.every"});
  const Keys inline_now = differences(async, "");
  EXPECT_NE(std::find(inline_now.begin(), inline_now.end(), "optimizer.refresh.mode"), inline_now.end());
}

}  // namespace
}  // namespace sestina

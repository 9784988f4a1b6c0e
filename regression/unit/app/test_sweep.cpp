// Sweeps: the product of a grid and its folders, rungs of successive halving, edges, what a deck may ask for, and runs
// as children of a process.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "../io/test_files.hpp"
#include "app/start/run_deck.hpp"
#include "app/sweep/child_runs.hpp"
#include "app/sweep/sweep_plan.hpp"
#include "app/sweep/sweep_points.hpp"
#include "app/sweep/sweep_results.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

constexpr const char* sweep_deck =
    "[run]\nsteps = 8\nthreads = 1\n[model]\npreset = \"llama-8m\"\nvocab_size = 256\n"
    "[[data.source]]\npath = \"text.txt\"\n[schedule]\nwarmup_steps = 4\n"
    "[sweep]\nseeds = [1, 2]\n[sweep.grid]\n\"schedule.lr\" = [1e-3, 3e-3]\n";

SweepArguments arguments_of(const TemporaryFolder& folder, std::vector<std::string> overrides = {}) {
  write_bytes(folder / "deck.toml", sweep_deck);
  SweepArguments arguments;
  arguments.deck.files = {folder / "deck.toml"};
  arguments.deck.overrides = std::move(overrides);
  arguments.dir = folder / "sweep";
  return arguments;
}

std::vector<std::string> names_of(const std::vector<SweepPoint>& points) {
  std::vector<std::string> names;
  for (const SweepPoint& point : points) names.push_back(point.name);
  return names;
}

TEST(SweepGrid, IsTheProductOfItsValues) {
  const auto points = grid_points({{"optimizer.kind", {"\"muon\"", "\"soap\""}}, {"schedule.lr", {"0.001", "0.01"}}});
  EXPECT_EQ(names_of(points), (std::vector<std::string>{"kind=muon_lr=0.001", "kind=muon_lr=0.01", "kind=soap_lr=0.001",
                                                        "kind=soap_lr=0.01"}));
  EXPECT_EQ(points[2].values, (std::vector<std::string>{"\"soap\"", "0.001"}));
}

TEST(SweepGrid, FoldersHaveAsMuchOfAKeyAsTellsItApart) {
  const auto points =
      grid_points({{"optimizer.lr", {"1"}}, {"optimizer.scalar.lr", {"2"}}, {"train.clip_norm", {"0"}}});
  EXPECT_EQ(points[0].name, "optimizer.lr=1_scalar.lr=2_clip_norm=0");
  EXPECT_EQ(grid_points({{"data.tokenizer", {"\"a/b c.json\""}}})[0].name, "tokenizer=a-b-c.json");
}

TEST(SweepGrid, BestAtTheEdgeOfNumbersSaysWhichWay) {
  const std::vector<SweepAxis> grid = {{"optimizer.kind", {"\"muon\"", "\"soap\""}},
                                       {"schedule.lr", {"0.01", "0.001", "0.003"}},
                                       {"train.clip_norm", {"1"}}};
  const auto edges = edges_of(grid, {{"\"muon\"", "0.01", "1"}, ""});
  ASSERT_EQ(edges.size(), 1u);  // neither words nor a single value have an edge
  EXPECT_EQ(edge_text(edges[0]),
            "the best value of schedule.lr is at the edge of its grid: extend schedule.lr above 0.01");
  EXPECT_FALSE(edges_of(grid, {{"\"muon\"", "0.001", "1"}, ""})[0].above);
  EXPECT_TRUE(edges_of(grid, {{"\"muon\"", "0.003", "1"}, ""}).empty());
}

TEST(SweepHalving, RungsDoubleTheirStepsAndHalveTheirPoints) {
  const auto shape = [](std::size_t points, double keep, int rungs) {
    std::vector<std::pair<std::size_t, std::int64_t>> shape;
    for (const SweepRung& rung : halving_rungs(points, keep, rungs, 80)) shape.emplace_back(rung.points, rung.steps);
    return shape;
  };
  using Shape = std::vector<std::pair<std::size_t, std::int64_t>>;
  EXPECT_EQ(shape(5, 0.5, 0), (Shape{{5, 10}, {3, 20}, {2, 40}, {1, 80}}));
  EXPECT_EQ(shape(8, 0.25, 2), (Shape{{8, 40}, {2, 80}}));
  EXPECT_EQ(shape(3, 0.99, 0), (Shape{{3, 20}, {2, 40}, {1, 80}}));  // every rung leaves fewer
  EXPECT_EQ(shape(1, 0.5, 0), (Shape{{1, 80}}));
}

TEST(SweepHalving, DivergedPointsAreLastAndEqualOnesKeepTheirOrder) {
  EXPECT_EQ(order_by_loss({HUGE_VAL, 3, std::nan(""), 2, 3}), (std::vector<std::size_t>{3, 1, 4, 0, 2}));
}

TEST(SweepDeck, IsReadFromAllLayersAndLeftOutByOtherVerbs) {
  const TemporaryFolder folder;
  const Sweep sweep = plan_sweep(arguments_of(folder, {"sweep.grid={\"train.clip_norm\"=[0.5,1]}", "run.steps=16"}));
  EXPECT_EQ(names_of(sweep.points), (std::vector<std::string>{"lr=0.001_clip_norm=0.5", "lr=0.001_clip_norm=1",
                                                              "lr=0.003_clip_norm=0.5", "lr=0.003_clip_norm=1"}));
  EXPECT_EQ(sweep.decks[0].steps, 16);
  EXPECT_FALSE(sweep.validation);
  EXPECT_EQ(sweep.deck.overrides, std::vector<std::string>{"run.steps=16"});
  EXPECT_EQ(sweep.decks[2].resolved.find("sweep"), std::string::npos);
  EXPECT_NE(sweep.decks[2].resolved.find("lr = 0.003"), std::string::npos);
  DeckArguments layers = arguments_of(folder).deck;
  Deck deck = layered_deck(layers);
  read_trainable(deck);
  EXPECT_NO_THROW(deck.finish());
}

// Those of the table of inputs/README.md, and no other.
TEST(SweepDeck, ReadmeListsEveryKey) {
  Deck deck;
  SweepOptions::read(deck, {}, {"sweep.grid={\"schedule.lr\"=[1]}"});
  std::set<std::string> documented, known = {"sweep.grid"};
  for (const std::string& key : deck.resolved_keys())
    if (key.starts_with("sweep.")) known.insert(key);
  std::ifstream file(std::string(SESTINA_SOURCE_DIR) + "/inputs/README.md");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("| `sweep.")) documented.insert(line.substr(3, line.find('`', 3) - 3));
  EXPECT_EQ(documented, known);
}

TEST(SweepDeck, RunsHaveFoldersSeedsAndShortenedSchedules) {
  const TemporaryFolder folder;
  const Sweep sweep = plan_sweep(arguments_of(folder, {"sweep.method=halving"}));
  const auto runs = runs_of(sweep, {1}, 4);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1].dir, folder / "sweep/steps=4/lr=0.003_seed=2");
  EXPECT_EQ(runs[1].overrides,
            (std::vector<std::string>{"schedule.lr=0.003", "run.steps=4", "schedule.warmup_steps=2", "run.seed=2"}));
  const auto command = command_of(sweep, runs[1]);
  EXPECT_EQ(command[1], "train");
  EXPECT_EQ(command.back(), "run.seed=2");
}

TEST(SweepDeck, ErrorsOfAllPointsAreToldAtOnce) {
  const TemporaryFolder folder;
  const auto refused = [&](ExitCode code, std::initializer_list<std::string> words,
                           std::vector<std::string> overrides) {
    expect_error(code, words, [&] { plan_sweep(arguments_of(folder, overrides)); });
  };
  refused(ExitCode::bad_deck, {"schedule.lrr: unknown key, did you mean schedule.lr", "train.clip_norm: out of range"},
          {"sweep.grid={\"schedule.lrr\"=[1],\"train.clip_norm\"=[-1]}"});
  refused(ExitCode::bad_deck, {"sweep.grid", "no values"}, {"sweep.grid={\"schedule.lr\"=[]}"});
  refused(ExitCode::bad_deck, {"sweep.grid", "a value stands twice"}, {"sweep.grid={\"schedule.lr\"=[1,1]}"});
  refused(ExitCode::bad_deck, {"sweep.seeds"}, {"sweep.grid={\"run.seed\"=[1,2]}"});
  refused(ExitCode::bad_deck, {"sweep.kep: unknown key, did you mean sweep.keep"}, {"sweep.kep=0.5"});
  refused(ExitCode::bad_deck, {"sweep.rungs"}, {"sweep.method=halving", "sweep.rungs=2", "run.steps=1"});
  refused(ExitCode::bad_deck, {"sweep.metric"}, {"sweep.metric=validation"});
  SweepArguments missing = arguments_of(folder);
  missing.deck.files = {folder / "none.toml"};
  expect_error(ExitCode::input_missing, {"none.toml"}, [&] { plan_sweep(missing); });
  missing.deck.files = {};
  expect_error(ExitCode::usage, {"no deck"}, [&] { plan_sweep(missing); });
}

TEST(SweepDeck, OnlyWhatChangesALossMakesAnotherSweep) {
  const TemporaryFolder folder;
  const std::string first = plan_sweep(arguments_of(folder)).text;
  EXPECT_EQ(sweep_difference(first, plan_sweep(arguments_of(folder, {"sweep.jobs=3", "run.threads=2"})).text), "");
  const std::string other = plan_sweep(arguments_of(folder, {"sweep.grid={\"schedule.lr\"=[1]}"})).text;
  EXPECT_NE(sweep_difference(first, other).find("sweep.grid.schedule.lr: [ 0.001, "), std::string::npos)
      << sweep_difference(first, other);
}

SweepResult result_of(std::size_t point, std::int64_t seed, double loss) {
  SweepResult result;
  result.run.point = point;
  result.run.seed = seed;
  result.finished = true;
  result.exit = std::isfinite(loss) ? 0 : 79;
  result.loss = loss;
  return result;
}

TEST(SweepResults, BestIsTheLowestMeanOverSeeds) {
  const TemporaryFolder folder;
  const Sweep sweep = plan_sweep(arguments_of(folder));
  const SweepSummary summary = summarize_sweep(
      sweep, {result_of(0, 1, 2.0), result_of(0, 2, HUGE_VAL), result_of(1, 1, 3.0), result_of(1, 2, 3.5)}, 0);
  const auto json = nlohmann::json::parse(sweep_json(sweep, summary));
  EXPECT_EQ(json["runs"].size(), 4u);
  EXPECT_TRUE(json["runs"][1]["loss"].is_null());
  EXPECT_EQ(json["runs"][1]["exit"], 79);
  EXPECT_EQ(json["best"]["values"]["schedule.lr"], 0.003);
  EXPECT_EQ(json["best"]["loss"], 3.25);
  EXPECT_NEAR(json["best"]["spread"].get<double>(), std::sqrt(0.125), 1e-15);
  EXPECT_EQ(json["on_edge"][0]["extend"], "above");
  EXPECT_NE(sweep_table(sweep, summary).find("diverged"), std::string::npos);
  const std::string charts = sweep_charts(sweep, summary);
  EXPECT_NE(charts.find("training loss against schedule.lr"), std::string::npos);
  EXPECT_EQ(charts.find("nan"), std::string::npos);
}

TEST(SweepChildren, EndWithTheirCodesAndTheFirstFailureStartsNoMore) {
  const TemporaryFolder folder;
  const auto child = [&](const std::string& script, const std::string& name) {
    return ChildRun{{"sh", "-c", script}, folder / name, false};
  };
  const std::vector<ChildRun> runs = {child("exit 0", "a"), child("echo 'sestina: error: no luck' >&2; exit 65", "b"),
                                      child("exit 0", "c")};
  const auto ends = run_children(runs, 1, [](std::size_t, int code) { return code == 0; });
  EXPECT_EQ(ends.codes, (std::vector<int>{0, 65, ChildEnds::not_started}));
  EXPECT_FALSE(ends.stopped);
  EXPECT_EQ(console_error(folder / "b"), "no luck");
  EXPECT_EQ(console_error(folder / "a"), "");
  const auto both = run_children({child("kill -9 $$", "d"), {{"no-such-program-here"}, folder / "e", false}}, 2,
                                 [](std::size_t, int) { return true; });
  EXPECT_EQ(both.codes, (std::vector<int>{137, 69}));
}

// Also where this process ignores the signal that it hands on, as nohup makes it do.
TEST(SweepChildren, AreToldToStop) {
  const TemporaryFolder folder;
  const auto before = signal(SIGTERM, SIG_IGN);
  const std::string script = "trap 'exit 75' TERM; : > \"$0/started\"; while :; do sleep 0.01; done";
  const std::vector<ChildRun> runs = {{{"sh", "-c", script, folder / "a"}, folder / "a", false},
                                      {{"sh", "-c", "exit 0"}, folder / "b", false}};
  const pthread_t self = pthread_self();
  std::thread sender([&] {
    while (!std::filesystem::exists(folder / "a/started")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pthread_kill(self, SIGTERM);
  });
  const auto ends = run_children(runs, 1, [](std::size_t, int) { return true; });
  sender.join();
  signal(SIGTERM, before);
  EXPECT_TRUE(ends.stopped);
  EXPECT_EQ(ends.codes, (std::vector<int>{75, ChildEnds::not_started}));
}

}  // namespace
}  // namespace sestina

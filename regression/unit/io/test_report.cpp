#include "io/report/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/report/history.hpp"
#include "io/report/page.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using test::TemporaryFolder;
using json = nlohmann::json;
using Values = std::vector<double>;
const double kNan = std::nan("");

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part;
}

ReportRun run(const std::string& name, int steps, double loss = 3) {
  ReportRun r;
  r.label = r.history.name = name;
  for (int s = 1; s <= steps; ++s) {
    TrainLine t;
    t.step = s;
    t.tokens = static_cast<std::uint64_t>(s) * 1024;
    t.loss = loss + 1.0 / s;
    t.grad_norm = 1;
    t.lr = 1e-3;
    t.step_s = 0.5;
    t.forward_backward_s = 0.25;
    t.optimizer_s = 0.125;
    t.data_s = 0.0625;
    t.tokens_per_s = 2048;
    t.memory_peak_bytes = 1 << 30;
    r.history.train.push_back(t);
  }
  return r;
}

// The object that the page's script reads.
json data_of(const std::string& html) {
  const std::string before = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = html.find(before) + before.size();
  return json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(ReportText, NumbersAndEscapes) {
  EXPECT_EQ(escape_html("<a & \"b\">'"), "&lt;a &amp; &quot;b&quot;&gt;&#39;");
  EXPECT_EQ(json_string("</script><!-- \" \\ \n \xFF"), "\"\\u003c/script>\\u003c!-- \\\" \\\\ \\n \xEF\xBF\xBD\"");
  EXPECT_EQ(short_number(12), "12");
  EXPECT_EQ(short_number(1234), "1234");
  EXPECT_EQ(short_number(805'000), "805k");
  EXPECT_EQ(short_number(5'261'568), "5.26M");
  EXPECT_EQ(short_number(12'300'000), "12.3M");
  EXPECT_EQ(short_number(0.003), "0.003");
  EXPECT_EQ(short_bytes(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(short_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(short_seconds(320), "5 min 20 s");
  EXPECT_EQ(short_seconds(11'100), "3 h 05 min");
}

TEST(ReportSeries, AbscissaeOfTrainingAndValidation) {
  RunHistory r = run("r", 4).history;
  r.validation = {{0, 9, {}}, {2, 8, {}}, {4, 7, {}}};
  EXPECT_EQ(abscissa(r, Abscissa::tokens), (Values{1024, 2048, 3072, 4096}));
  EXPECT_EQ(abscissa(r, Abscissa::time), (Values{0.5, 1, 1.5, 2}));
  EXPECT_EQ(validation_abscissa(r, Abscissa::step), (Values{0, 2, 4}));
  EXPECT_EQ(validation_abscissa(r, Abscissa::time), (Values{0, 1, 2}));
}

TEST(ReportSeries, ThinningKeepsEndsMeansAndExtremes) {
  const Values values{1, 3, 5, kNan, kNan, kNan, 9};
  EXPECT_EQ(group_size(7, 4), 2u);
  EXPECT_EQ(group_size(4, 4), 1u);
  EXPECT_EQ(thinned({1, 2, 3, 4, 5, 6, 7}, 2, Thinning::last), (Values{1, 4, 6, 7}));
  const Values mean = thinned(values, 2, Thinning::mean);
  EXPECT_EQ(mean[0], 2);
  EXPECT_EQ(mean[1], 5);
  EXPECT_TRUE(std::isnan(mean[2]));
  EXPECT_EQ(mean[3], 9);
  EXPECT_EQ(thinned(values, 4, Thinning::least)[0], 1);
  EXPECT_EQ(thinned(values, 4, Thinning::most)[0], 5);
}

TEST(ReportSeries, LeavesOutWhatIsAlwaysZeroAndKeepsWhatItDoesNotKnow) {
  RunHistory r = run("r", 3).history;
  r.train[1].preconditioner_age_max = 4;
  r.more["staleness"] = {kNan, 2, 3};
  std::vector<std::string> names;
  for (const NamedSeries& series : all_series(r)) names.push_back(series.name);
  for (const char* there : {"loss", "step_s", "data_s", "preconditioner_age_max", "staleness"})
    EXPECT_EQ(std::count(names.begin(), names.end(), there), 1) << there;
  for (const char* gone : {"mfu", "energy_j", "reduce_s", "gather_s", "refresh_wait_s"})
    EXPECT_EQ(std::count(names.begin(), names.end(), gone), 0) << gone;
}

TEST(ReportSeries, Summary) {
  RunHistory r = run("r", 20).history;
  r.train[19].loss = kNan;
  r.train[3].tokens_per_s = 1e9;
  r.validation = {{10, 2.5, 1.5}, {20, 2.75, 1.75}};
  const Summary s = summarize(r);
  EXPECT_EQ(s.steps, 20);
  EXPECT_EQ(s.tokens, 20480u);
  double expected = 0;
  for (int step = 10; step <= 19; ++step) expected += 3 + 1.0 / step;
  EXPECT_NEAR(*s.loss, expected / 10, 1e-12);
  EXPECT_EQ(s.validation_loss, 2.75);
  EXPECT_EQ(s.best_validation_loss, 2.5);
  EXPECT_EQ(s.bits_per_byte, 1.75);
  EXPECT_EQ(s.tokens_per_s, 2048);
  EXPECT_EQ(s.step_s, 0.5);
  EXPECT_EQ(s.seconds, 10);
  EXPECT_FALSE(s.mfu.has_value());
  EXPECT_FALSE(summarize(run("empty", 0).history).loss.has_value());
}

TEST(ReportHistory, RewindsUnknownKeysTensorsAndDivergence) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "checkpoints/step_2");
  test::write_bytes(folder / "checkpoints/step_2/manifest.json", "{}");
  test::write_bytes(
      folder / "metrics.jsonl",
      R"({"kind":"run","step":0,"commit":"abc","hosts":["a","a","b"],"ranks":2,"time":5.5,"started":"noon"}
{"kind":"train","step":1,"loss":5,"staleness":[1,3]}
{"kind":"tensors","step":1,"tensors":{"z":{"weight_rms":1,"update_rms":2,"spectral_norm":3},"a":{"weight_rms":4}}}
{"kind":"checkpoint","step":1,"path":"checkpoints/step_1","seconds":1,"bytes":10,"error":null}
{"kind":"train","step":2,"loss":4}
{"kind":"checkpoint","step":2,"path":"checkpoints/step_2","seconds":1,"bytes":10,"error":null}
{"kind":"train","step":3,"loss":9,"staleness":7}
{"kind":"tensors","step":3,"tensors":{"z":{"weight_rms":8}}}
{"kind":"loads","step":3,"optimizer_s":[1,2],"planned":[3,4]}
{"kind":"updates","step":3,"tensors":[{"pattern":"z","rule":"muon"}]}
{"kind":"event","step":3,"what":"diverged","detail":"x"}
)");
  RunHistory history = read_history(folder.path());
  EXPECT_TRUE(history.diverged);
  EXPECT_EQ(history.start, (std::vector<std::pair<std::string, std::string>>{
                               {"commit", "abc"}, {"hosts", "a, b"}, {"ranks", "2"}, {"started", "noon"}}));
  EXPECT_EQ(history.more.at("staleness")[0], 3);
  EXPECT_TRUE(std::isnan(history.more.at("staleness")[1]));
  EXPECT_EQ(history.updates.at(0).tensors.at(0).rule, "muon");
  EXPECT_EQ(history.tensors.names, (std::vector<std::string>{"z", "a"}));
  EXPECT_EQ(history.tensors.values[0][0], (Values{1, 8}));
  EXPECT_TRUE(std::isnan(history.tensors.values[0][1][1]));
  EXPECT_FALSE(history.checkpoints.at(0).there);
  EXPECT_TRUE(history.checkpoints.at(1).there);
  test::write_bytes(folder / "metrics.jsonl",
                    test::read_bytes(folder / "metrics.jsonl") +
                        "{\"kind\":\"rewind\",\"step\":2,\"to_step\":2}\n{\"kind\":\"train\",\"step\":3,\"loss\":3}\n");
  history = read_history(folder.path());
  EXPECT_FALSE(history.diverged);
  ASSERT_EQ(history.train.size(), 3u);
  EXPECT_EQ(history.train[2].loss, 3);
  EXPECT_EQ(history.more.at("staleness").size(), 3u);
  EXPECT_TRUE(std::isnan(history.more.at("staleness")[2]));
  EXPECT_EQ(history.tensors.steps, (std::vector<std::int64_t>{1}));
  EXPECT_TRUE(history.loads.empty());
  EXPECT_TRUE(history.updates.empty());
  EXPECT_EQ(history.notes.back().text, "resumed from step 2");
}

// The blocks of trace.json that updates waited for, longest first; what is cut or of another kind is no error.
TEST(ReportHistory, StallsOfBlocksComeFromTheTrace) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_stalls(folder.path()).empty());
  std::string trace = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  const auto add = [&trace](const std::string& cat, const std::string& name, int rank, double from, double to) {
    const json begin = {{"ph", "b"},   {"cat", cat}, {"name", name},
                        {"pid", rank}, {"ts", from}, {"args", {{"bytes", 4096}, {"update", 3}}},
                        {"tid", 0}};
    const json end = {{"ph", "e"}, {"cat", cat}, {"name", name}, {"pid", rank}, {"ts", to}, {"tid", 0}};
    trace += begin.dump() + ",\n" + end.dump() + ",\n";
  };
  for (int i = 0; i < 12; ++i) add("state wait", "block " + std::to_string(i), 0, 0, 1000 * (i + 1));
  add("state wait", "block 3", 1, 0, 5e6);
  add("state wait", "block 3", 1, 6e6, 7e6);
  add("state read", "block 3", 1, 0, 5e6);
  add("state write", "block 3", 1, 8e6, 9e6);
  add("state wait of a worker", "block 5", 0, 0, 9e6);
  add("state read", "block 7", 1, 0, 5e6);  // nobody waited
  trace += "{\"ph\":\"b\",\"cat\":\"state wait\",\"name\":\"cu";
  test::write_bytes(folder / "trace.json", trace);
  const auto stalls = read_stalls(folder.path());
  ASSERT_EQ(stalls.size(), 10u);
  EXPECT_EQ(stalls[0].block, "block 3");
  EXPECT_EQ(stalls[0].rank, 1);
  EXPECT_EQ(stalls[0].waits, 2);
  EXPECT_NEAR(stalls[0].seconds, 6, 1e-9);
  EXPECT_NEAR(stalls[0].longest, 5, 1e-9);
  EXPECT_EQ(stalls[0].bytes_read, 4096);
  EXPECT_EQ(stalls[0].bytes_written, 4096);
  EXPECT_EQ(stalls[1].block, "block 11");
  EXPECT_EQ(stalls[9].block, "block 3");
  ReportRun shown = run("a", 1);
  shown.history.stalls = stalls;
  expect_in(record_tables({shown}),
            {"a: waits for state in trace.json",
             "<tr><td>1</td><td class=\"path\">block 3</td><td>2</td><td>" + short_seconds(6) + "</td>"});
}

TEST(ReportFacts, DecksAreFlatInTheirOrder) {
  const FlatDeck deck = flat_deck("[run]\nzero = 0.003\nname = \"a\"\n[[data.source]]\npath = \"x\"\nsizes = [1, 2]\n");
  EXPECT_EQ(
      deck,
      (FlatDeck{
          {"run.zero", "0.003"}, {"run.name", "a"}, {"data.source.0.path", "x"}, {"data.source.0.sizes", "[ 1, 2 ]"}}));
  EXPECT_TRUE(flat_deck("no [ toml").empty());
}

TEST(ReportFacts, TableNamesWhatRunsAreAndWhereTheyDiffer) {
  ReportRun a = run("a", 1), b = run("b", 1), c = run("c", 1);
  const std::string common = "[data]\nsequence_length = 128\n[train]\nglobal_batch = 8\n[parallel]\ndp = 2\n";
  a.deck = "[run]\nname = \"a\"\nseed = 1\n[optimizer]\nkind = \"adamw\"\nlr = 1e-3\n" + common;
  b.deck = "[run]\nname = \"b\"\nseed = 1\n[optimizer]\nkind = \"muon\"\nlr = 0.02\nns_steps = 5\n" + common;
  b.parameters = 805'000;
  b.history.start = {{"commit", "abc"}, {"time", "noon"}, {"started", "2026-01-01T03:00:00Z"}};
  const auto rows = deck_differences({a, b, c});  // c has no deck: it differs in nothing
  std::vector<std::string> keys;
  for (const FactRow& row : rows) keys.push_back(row.name);
  EXPECT_EQ(keys, (std::vector<std::string>{"optimizer.kind", "optimizer.lr", "optimizer.ns_steps"}));
  EXPECT_EQ(rows[1].values, (std::vector<std::string>{"0.001", "0.02", ""}));
  const std::string table = facts_table({a, b, c});
  expect_in(table,
            {"parameters", "805k", "learning rate", "8 × 128 tokens", "2 (dp 2, tp 1, pp 1)", "commit", "abc", "noon",
             "2026-<wbr>01-<wbr>01 03:00:00 UTC", "deck keys that differ", "optimizer.<wbr>ns_<wbr>steps"});
  EXPECT_EQ(table.find("seed"), std::string::npos);
  EXPECT_NE(table.find("<tr class=\"differs\"><th scope=\"row\">optimizer"), std::string::npos);
  EXPECT_EQ(table.find("<tr class=\"differs\"><th scope=\"row\">commit"), std::string::npos);  // only b knows its own
  EXPECT_EQ(facts_table({c}), "");
}

// The paper's own numbers for AdamW and one other: totals 100 % and 107.9 %, of a vocabulary of 32128.
TEST(ReportTables, LossForEnergyIsRelativeToAdamW) {
  const double reference = std::log(32128.0);
  ReportRun adamw = run("adamw", 20, reference - 3.0942), other = run("other", 20, reference - 3.3010 * 1.079);
  for (ReportRun* r : {&adamw, &other})
    for (TrainLine& line : r->history.train) line.loss -= 1.0 / static_cast<double>(line.step);  // constant
  for (TrainLine& line : adamw.history.train) line.energy_j = 100;
  for (TrainLine& line : other.history.train) line.energy_j = 107.9;
  adamw.deck = "[model]\nvocab_size = 32128\n[optimizer]\nkind = \"adamw\"\n";
  other.deck = "[model]\nvocab_size = 32128\n[optimizer]\nkind = \"kl-shampoo\"\n";
  const std::string table = summary_table({other, adamw});
  expect_in(table, {"<th scope=\"col\">energy</th>", "<th scope=\"col\">loss for energy</th>", "<td>3.3010</td>",
                    "<td>3.0942</td>", "<td>2000J</td>", "<td>2158J</td>", "first AdamW run"});
  EXPECT_EQ(summary_table({other}).find("loss for energy"), std::string::npos);  // nothing to compare with
  other.history.train[7].energy_j.reset();                                       // not all of it is known
  const std::string without = summary_table({other, adamw});
  EXPECT_EQ(without.find("3.3010"), std::string::npos);
  expect_in(without, {"<td>3.0942</td>"});
  EXPECT_EQ(without.find("<th scope=\"col\">processor time</th>"), std::string::npos);
  other.history.more["processor_s"].assign(20, 0.5);
  adamw.history.more["processor_s"].assign(20, 7);  // its energy is known
  expect_in(summary_table({other, adamw}), {"<th scope=\"col\">processor time</th>", "<td>10 s</td>"});
}

TEST(ReportTables, BadgesAndCheckpoints) {
  ReportRun a = run("a", 3), b = run("b", 3);
  a.history.diverged = true;
  a.history.notes = {{1, "rewind", "resumed from step 1"}, {3, "event", "diverged: loss nan & more"}};
  a.history.checkpoints = {{1, "checkpoints/step_1", "", 0.5, 1e6, false},
                           {2, "checkpoints/step_2", "", 0.5, 1e6, true},
                           {3, "checkpoints/step_3", "disk full", 0, 0, false}};
  b.running = true;
  const std::string summary = summary_table({a, b});
  expect_in(summary, {"<span class=\"badge bad\">diverged</span>", "<span class=\"badge good\">running</span>",
                      "<span class=\"badge\">resumed</span>"});
  const std::string records = record_tables({a, b});
  expect_in(records, {"a: 3 checkpoints, 1 kept, 1 failed", "<tr class=\"gone\"><td>1</td>", "removed", "disk full",
                      "loss nan &amp; more"});
  EXPECT_EQ(count(records, "<details open>"), 1u);  // the events of what diverged; checkpoints stay collapsed
}

TEST(Report, OnePageWithoutTheNetwork) {
  ReportRun a = run("first </script><b> \"run\"", 1500), b = run("second", 40, 4);
  a.history.validation = {{1000, 3.25, 1.5}};
  a.history.notes = {
      {7, "event", "spike: loss 9 in step 7"}, {9, "event", "stop: TERM"}, {1000, "rewind", "resumed from step 1000"}};
  a.deck = "[run]\nname = \"<x> @{data} \"\n";
  b.history.train[5].loss = kNan;
  b.history.bad_lines = 2;
  b.history.loads = {{40, {1, 2}, {3, 4}}};
  b.history.stages = {{30, {1, 0}, {0.5, 0}, {0.5, 1}}, {40, {1, 0}, {kNan, 0.25}, {}}};
  b.history.updates = {{20, {}}, {40, {{"w.*", "muon", "whole", "0-1", 20, 0.25, 1e-3, 0.5, 0, {0.5, kNan}}}}};
  b.history.rotations = {{20, {{"q.*", 0.25, 0, 0, 4, 0.5, 1, {}}}},
                         {40, {{"q.*", 0.5, 0.125, 0, 2, 0.5, 1, {0.5, kNan}}}}};
  b.history.more["preconditioner_age_mean_stage_1"].assign(40, 2.5);
  const std::string html = report_html({a, b}, {"today", 0});
  EXPECT_EQ(count(html, "http://"), count(html, "http://www.w3.org/2000/svg"));  // a name, nothing to fetch
  for (const char* network : {"https://", "src=", "<link", "@import", "url(http"})
    EXPECT_EQ(html.find(network), std::string::npos) << network;
  EXPECT_EQ(html.find("first </script>"), std::string::npos);
  EXPECT_EQ(count(html, "<script"), count(html, "</script>"));
  expect_in(html, {"first &lt;/script&gt;&lt;b&gt; &quot;run&quot;", "default-src 'none'",
                   "name = &quot;&lt;x&gt; @{data} &quot;", "2 lines of metrics.jsonl", "generated today"});
  const json data = data_of(html);
  EXPECT_EQ(data["reload"], 0);
  EXPECT_EQ(data["runs"][0]["name"], "first </script><b> \"run\"");
  EXPECT_EQ(data["runs"][0]["x"]["tokens"][1], 2048);
  EXPECT_EQ(data["runs"][0]["validation"]["time"][0], 500);
  EXPECT_EQ(data["runs"][0]["resumes"], json({1000}));
  EXPECT_EQ(data["runs"][0]["marks"], json::parse(R"([{"step": 7, "text": "spike: loss 9 in step 7"}])"));
  EXPECT_EQ(data["runs"][1]["marks"], json::array());
  EXPECT_TRUE(data["runs"][1]["series"]["loss"][5].is_null());
  EXPECT_EQ(data["runs"][1]["loads"]["planned"], json({3, 4}));
  EXPECT_EQ(data["runs"][1]["updates"],
            json::parse(R"({"step": 40, "rows": [{"pattern": "w.*", "rule": "muon", "split": "whole", "owner": "0-1",
    "calls": 20, "orthogonality_defect": 0.25, "update_rms": 0.001, "update_ratio": 0.5, "decay": 0,
    "layers": [0.5, null]}]})"));
  EXPECT_EQ(data["runs"][1]["rotations"], json::parse(R"({"step": 40, "first_step": 20, "rows": [{"pattern": "q.*",
    "largest_q": 0.5, "defect": 0.125, "applied_defect": 0, "sigma_max": 2, "sigma_min": 0.5, "sigma_rms": 1,
    "first_max": 4, "first_min": 0.5, "first_rms": 1, "layers": [0.5, null]}]})"));
  EXPECT_EQ(data["runs"][1]["stages"]["staleness"], json({1, 0}));
  EXPECT_EQ(data["runs"][1]["stages"]["drift"], json({nullptr, 0.25}));
  EXPECT_EQ(data["runs"][1]["series"]["preconditioner_age_mean_stage_1"][39], 2.5);
  EXPECT_EQ(data["runs"][1]["stages"]["cosine"], json({0.5, 1}));
}

TEST(Report, MillionStepsStaySmall) {
  const ReportRun r = run("long", 1'000'000);
  const std::string html = report_html({r}, {"", 0});
  EXPECT_LT(html.size(), 1'000'000u);
  const json data = data_of(html)["runs"][0];
  EXPECT_EQ(data["x"]["step"].size(), 2000u);
  EXPECT_EQ(data["x"]["step"].front(), 1);
  EXPECT_EQ(data["x"]["step"].back(), 1'000'000);
  EXPECT_EQ(data["high"]["loss"][0], 4);  // of the first update
}

TEST(Report, FewOrNoLines) {
  for (const int steps : {0, 1, 2})
    EXPECT_EQ(data_of(report_html({run("r", steps)}, {"", 0}))["runs"][0]["x"]["step"].size(),
              static_cast<std::size_t>(steps));
  EXPECT_TRUE(data_of(report_html({}, {"", 0}))["runs"].empty());
}

TEST(Report, ReloadsItself) {
  const std::string html = report_html({run("r", 2)}, {"", 5});
  EXPECT_EQ(data_of(html)["reload"], 5);
  expect_in(html, {"<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>"});
  EXPECT_EQ(report_html({run("r", 2)}, {"", 0}).find("http-equiv=\"refresh\""), std::string::npos);
}

TEST(ReportCsv, OneColumnPerSeries) {
  ReportRun a = run("a, \"b\"", 2), b = run("c", 1);
  a.history.validation = {{0, 5.5, {}}, {2, 3.25, 1.5}};
  a.history.train[0].loss = kNan;
  b.history.train[0].mfu = 0.5;
  const std::string csv = report_csv({a, b});
  const std::string head = csv.substr(0, csv.find('\n'));
  EXPECT_EQ(head,
            "run,step,tokens,seconds,loss,grad_norm,lr,step_s,tokens_per_s,data_s,forward_backward_s,optimizer_s,"
            "memory_peak_bytes,mfu,validation_loss,bits_per_byte");
  EXPECT_EQ(csv.substr(head.size() + 1),
            "\"a, \"\"b\"\"\",0,,,,,,,,,,,,,5.5,\n"
            "\"a, \"\"b\"\"\",1,1024,0.5,,1,0.001,0.5,2048,0.0625,0.25,0.125,1073741824,,,\n"
            "\"a, \"\"b\"\"\",2,2048,1,3.5,1,0.001,0.5,2048,0.0625,0.25,0.125,1073741824,,3.25,1.5\n"
            "c,1,1024,0.5,4,1,0.001,0.5,2048,0.0625,0.25,0.125,1073741824,0.5,,\n");
}

}  // namespace
}  // namespace sestina

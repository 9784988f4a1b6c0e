// The deck: layers, types, ranges, places of errors, suggestions, dump. Each bad input must be refused where it stands.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "core/deck/deck.hpp"

namespace sestina {
namespace {

// A small reader that stands for the program's sections.
void read_some(Deck& deck) {
  deck.integer("run.steps", 10, {.min = 0});
  deck.text("run.name", "run");
  deck.duration("run.walltime", 0);
  deck.boolean("run.deterministic", false);
  deck.texts("run.stop_signals", {"TERM"});
  deck.number("schedule.lr", 1e-3, {.min = 0});
  deck.choice("schedule.kind", "cosine", {"cosine", "linear"});
  deck.maybe_number("machine.peak_tflops");
  const std::size_t sources = deck.table_count("data.source");
  for (std::size_t i = 0; i < sources; ++i) {
    deck.path(fmt::format("data.source.{}.path", i), "");
    deck.number(fmt::format("data.source.{}.weight", i), 1, {.min = 0, .open_min = true});
  }
}

Deck deck_of(const std::string& toml) {
  Deck deck;
  deck.add_text(toml, "a.toml", "/folder");
  read_some(deck);
  return deck;
}

std::string errors_in(Deck deck) {
  try {
    deck.finish();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    return error.what();
  }
  return "";
}
std::string errors_in(const std::string& toml) { return errors_in(deck_of(toml)); }

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in:\n" << text;
}

TEST(Deck, DefaultsAreRecorded) {
  Deck deck = deck_of("");
  deck.finish();
  EXPECT_EQ(deck.resolved("run.steps"), "10");
  EXPECT_EQ(deck.resolved("schedule.lr"), "0.001");
  EXPECT_EQ(deck.resolved("machine.peak_tflops"), "");
  expect_contains(deck.dump(), "# peak_tflops is not set\n");
}

TEST(Deck, LaterLayersWin) {
  Deck deck;
  deck.add_text("[run]\nsteps = 1\nname = \"stored\"\n[[data.source]]\npath = \"x\"\n[[data.source]]\npath = \"y\"\n",
                "stored", "/s");
  deck.add_text("[run]\nsteps = 2\n[[data.source]]\npath = \"z\"\n", "file", "/f");
  deck.add_override("run.steps=3");
  deck.add_override("schedule/lr=1e-2");
  EXPECT_EQ(deck.integer("run.steps", 0), 3);
  EXPECT_EQ(deck.text("run.name", ""), "stored");
  EXPECT_EQ(deck.number("schedule.lr", 0), 0.01);
  ASSERT_EQ(deck.table_count("data.source"), 1u);  // a list is replaced, not merged
  EXPECT_EQ(deck.path("data.source.0.path", ""), "/f/z");
  deck.finish();
}

TEST(Deck, OverridesTakeTomlOrBareText) {
  Deck deck;
  for (const char* text :
       {"run.name=true", "run.walltime=100:00:01", "run.stop_signals=[\"TERM\", \"USR2\"]", "schedule.kind=linear",
        "data.source=[{path=\"/a\"}, {path=\"/b\", weight=2}]", "data.source.1.weight=3"})
    deck.add_override(text);
  read_some(deck);
  EXPECT_EQ(deck.resolved("run.name"), "\"true\"");
  EXPECT_EQ(deck.resolved("run.walltime"), "360001.0");
  EXPECT_EQ(deck.resolved("run.stop_signals"), "[\"TERM\", \"USR2\"]");
  EXPECT_EQ(deck.resolved("schedule.kind"), "\"linear\"");
  EXPECT_EQ(deck.resolved("data.source.1.weight"), "3.0");
  deck.finish();
}

TEST(Deck, OverrideWithLineBreakSetsNothingElse) {
  Deck deck;
  deck.add_override("run.name=1\n[schedule]\nlr = 5.0");
  read_some(deck);
  EXPECT_EQ(deck.resolved("schedule.lr"), "0.001");
  EXPECT_EQ(deck.resolved("run.name"), "\"1\\n[schedule]\\nlr = 5.0\"");
}

TEST(Deck, BadOverridesAreErrors) {
  for (const char* text : {"run.steps", "=3", ".x=1", "run..steps=1", "run steps=1", "run.steps=abc",
                           "run.steps=", "run.stepz=4", "steps=4"}) {
    Deck deck;
    deck.add_override(text);
    read_some(deck);
    const std::string error = errors_in(std::move(deck));
    expect_contains(error, "command line: ");
  }
}

TEST(Deck, DumpReadsBackToItself) {
  Deck deck = deck_of(
      "[run]\nname = \"a \\\"quoted\\\" \\\\ \\n \\u0001 é\"\nwalltime = 01:02:03\n[schedule]\nlr = "
      "1\n[machine]\npeak_tflops = 0.1\n"
      "[[data.source]]\npath = \"x\"\n[[data.source]]\npath = \"/y\"\nweight = 1e-300\n");
  deck.finish();
  Deck again;
  again.add_text(deck.dump(), "dump", "/elsewhere");
  read_some(again);
  again.finish();
  EXPECT_EQ(again.dump(), deck.dump());
  EXPECT_EQ(again.resolved("run.walltime"), "3723.0");
  EXPECT_EQ(again.resolved("data.source.0.path"), "\"/folder/x\"");
}

TEST(Deck, FindsAllErrorsWithTheirPlaces) {
  const std::string error = errors_in(
      "[run]\nstesp = 3\nsteps = -3\nsteps = 4\nname =\n[schedule]\nlr = nan\nkind = \"cosin\"\n[modle]\na = 1\nb = 2\n"
      "[[data.source]]\nweigth = 3\nweight = 0\n[run]\n");
  expect_contains(error, "a.toml:2:9: run.stesp: unknown key, did you mean run.steps?, got 3, allowed steps, name");
  expect_contains(error, "a.toml:3:9: run.steps: out of range, got -3, allowed an integer >= 0");
  expect_contains(error, "a.toml:4:9: ");
  expect_contains(error, "a.toml:5:");
  expect_contains(error, "a.toml:7:6: schedule.lr: not a finite number, got nan");
  expect_contains(error,
                  "a.toml:8:8: schedule.kind: unknown value, did you mean \"cosine\"?, got \"cosin\", allowed "
                  "\"cosine\", \"linear\"");
  expect_contains(error, "a.toml:9:1: modle: unknown section");
  EXPECT_EQ(error.find("modle.a"), std::string::npos);
  expect_contains(error, "a.toml:13:10: data.source.0.weigth: unknown key, did you mean data.source.0.weight?");
  expect_contains(error, "a.toml:14:10: data.source.0.weight: out of range, got 0, allowed > 0");
  expect_contains(error, "a.toml:15:1: ");
}

TEST(Deck, RefusesWrongTypes) {
  for (const char* line :
       {"steps = 2.5", "steps = \"2\"", "steps = true", "name = 3", "walltime = \"soon\"", "walltime = -1",
        "walltime = inf", "deterministic = 1", "stop_signals = \"TERM\"", "stop_signals = [1]", "steps = {a = 1}",
        "steps = [1]", "steps = 1979-05-27", "steps = 99999999999999999999"})
    expect_contains(errors_in(fmt::format("[run]\n{}\n", line)), "a.toml:2:");
  expect_contains(errors_in("run = 3\n"), "a.toml:1:7: run: unknown key");
  expect_contains(errors_in("[data.source]\npath = \"x\"\n"), "data.source: not an array of tables");
  expect_contains(errors_in("[schedule]\nlr = \"1e-3\"\n"),
                  "a.toml:2:6: schedule.lr: wrong type (a string), got \"1e-3\", allowed a number");
}

TEST(Deck, KeyInTheWrongSectionIsFound) {
  expect_contains(errors_in("[run]\nlr = 1.0\n"), "run.lr: unknown key, did you mean schedule.lr?");
  expect_contains(errors_in("[run]\n\"a.b\" = 1.0\n"), "run.\"a.b\": unknown key");
}

TEST(Deck, RequiredKeysAreLeftOutAfterASyntaxError) {
  Deck deck;
  deck.add_text("[run]\n", "a.toml", "");
  deck.require("run.steps", "why");
  deck.error("model", "no model given", "a preset");
  read_some(deck);
  const std::string error = errors_in(std::move(deck));
  expect_contains(error, "a.toml: run.steps: required: why");
  expect_contains(error, "a.toml: model: no model given, allowed a preset");
  Deck broken;
  broken.add_text("[run\nsteps = 3\n", "a.toml", "");
  broken.require("run.steps", "why");
  read_some(broken);
  const std::string only_syntax = errors_in(std::move(broken));
  expect_contains(only_syntax, "a.toml:1:5: ");
  EXPECT_EQ(only_syntax.find("required"), std::string::npos);
}

TEST(Deck, RefusesWrongBytes) {
  expect_contains(errors_in("[run]\nname = \"\xff\"\nsteps = 2.5\n"), "a.toml:2:");
  expect_contains(errors_in("[run]\nname = \"\xff\"\nsteps = 2.5\n"), "a.toml:3:9: run.steps");
  expect_contains(errors_in("\xEF\xBB\xBF[run]\nsteps = 2.5\n"), "a.toml:1:1: byte-order mark");
  expect_contains(errors_in("[run]\r\nsteps = 3\r\n"), "a.toml:1:6: carriage return");
  expect_contains(errors_in("\xff\xfe[\0r\0"), "a.toml:1:1: ");
  expect_contains(errors_in(std::string("[run]\nname = \"a\0b\"\n", 19)), "a.toml:2:");
  expect_contains(errors_in(std::string(100000, '[')), "a.toml:1:");
  std::string deep = "a";
  for (int i = 0; i < 200000; ++i) deep += ".a";
  expect_contains(errors_in(deep + " = 1\n"), "a.toml:1:1: more than 1000 dots");
}

TEST(Deck, NonAsciiStandsInStringsAndCommentsAlone) {
  expect_contains(errors_in("[run]\nn\u00e9 = 3\n"), "a.toml:2:2: character that is not ASCII");
  const std::string error = errors_in("[r\u00e9]\nsteps = 3.5\n[run]\nsteps = 2.5\n");
  expect_contains(error, "a.toml:1:3: character that is not ASCII");
  expect_contains(error, "a.toml:4:9: run.steps: wrong type");
  EXPECT_EQ(error.find("a.toml:2:"), std::string::npos);
  expect_contains(errors_in("[run]\nname = \"\"\"\u00e9\n\u00e9\"\"\"\u00e9\n"),
                  "a.toml:3:5: character that is not ASCII");
  Deck deck = deck_of(
      "# \u00e9 'it' \"\n[run]\nname = '\u00e9 \\' # \u00e9\nstop_signals = [\"\\\"\u00e9\", '''\u00e9''\n\u00e9'''] # "
      "\u00e9\n");
  deck.finish();
  EXPECT_EQ(deck.resolved("run.name"), "\"\u00e9 \\\\\"");
  Deck bad_override;
  bad_override.add_override("run.name=\xff");
  read_some(bad_override);
  expect_contains(errors_in(std::move(bad_override)), "command line: run.name: the value is not UTF-8");
}

TEST(Deck, LargeFilesAreRefusedQuickly) {
  const std::string path = testing::TempDir() + "sestina_large_deck.toml";
  {
    std::ofstream file(path);
    for (int i = 0; i < 200000; ++i) file << "# a comment in a deck that is far too long, line " << i << "\n";
  }
  Deck deck;
  const auto start = std::chrono::steady_clock::now();
  deck.add_file(path);
  const std::string error = errors_in(std::move(deck));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  expect_contains(error, ":1:1: the deck is too large");
  std::filesystem::remove(path);
}

TEST(Deck, ManyErrorsAreCut) {
  std::string text = "[run]\n";
  for (int i = 0; i < 500; ++i) text += fmt::format("key{} = 1\n", i);
  expect_contains(errors_in(text), "and more: the first 100 are shown");
}

TEST(Deck, MissingFileIsMissingInput) {
  Deck deck;
  try {
    deck.add_file("/no/such/deck.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input_missing);
  }
}

TEST(Deck, Durations) {
  EXPECT_EQ(parse_duration("00:00:01"), 1.0);
  EXPECT_EQ(parse_duration("123:59:59"), 123 * 3600 + 59 * 60 + 59.0);
  for (const char* text :
       {"", "1", "1:2", "1:60:00", "1:00:60", "a:00:00", "1:00:00x", "1:00:00:00", "-1:00:00", ":00:00", "1::00"})
    EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Deck, NamesForbiddenChanges) {
  Deck stored = deck_of("[run]\nsteps = 10\n[schedule]\nlr = 1e-3\n[[data.source]]\npath = \"/a\"\n");
  Deck now = deck_of(
      "[run]\nsteps = 20\nname = \"b\"\n[schedule]\nlr = 2e-3\n[machine]\npeak_tflops = 3.0\n[[data.source]]\npath = "
      "\"/b\"\nweight = 2.0\n");
  const auto differences = forbidden_changes(stored, now);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "schedule.lr");
  EXPECT_EQ(differences[0].stored, "0.001");
  EXPECT_EQ(differences[0].now, "0.002");
  EXPECT_EQ(differences[1].key, "data.source.0.weight");
}

}  // namespace
}  // namespace sestina

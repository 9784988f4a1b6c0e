// What a user meets first: help, the bar, which tokenizer counts, what a resume changes unasked, the deck of init.
#include <errno.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "../io/test_files.hpp"
#include "app/command/command_line.hpp"
#include "app/start/program_frame.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/run_data.hpp"
#include "app/train/run_start.hpp"
#include "app/train/step_report.hpp"
#include "app/verbs/run_size.hpp"
#include "core/deck/deck.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;
using test::write_bytes;

std::string shown(std::vector<std::string> words) {
  words.insert(words.begin(), "sestina");
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  return std::get<ShowText>(parse_command_line(static_cast<int>(argv.size()), argv.data())).text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(FrontDoor, HelpIsAnAnswer) {
  EXPECT_TRUE(has(shown({}), "generate"));
  EXPECT_EQ(shown({"help"}), shown({"-h"}));
  EXPECT_EQ(shown({"help", "data", "tokenize"}), shown({"data", "tokenize", "-h"}));
}

TEST(FrontDoor, EveryVerbHasExamplesCompletionAndAPageOfTheManual) {
  const std::string bash = shown({"manual", "bash"}), man = shown({"manual", "man"});
  for (const char* verb : {"init",
                           "train",
                           "plan",
                           "eval",
                           "generate",
                           "data tokenize",
                           "data train-tokenizer",
                           "data inspect",
                           "data verify",
                           "checkpoint list",
                           "checkpoint verify",
                           "checkpoint export",
                           "checkpoint convert",
                           "checkpoint import",
                           "report",
                           "sweep",
                           "bench step",
                           "bench kernels",
                           "bench optimizer",
                           "info",
                           "check"}) {
    std::vector<std::string> words;
    const std::string name = verb;
    const auto space = name.find(' ');
    words.push_back(name.substr(0, space));
    if (space != name.npos) words.push_back(name.substr(space + 1));
    words.push_back("-h");
    EXPECT_TRUE(has(shown(words), "Examples:\n  sestina ")) << verb;
    EXPECT_TRUE(has(bash, "'" + name + "') words=")) << verb;
  }
  EXPECT_TRUE(has(bash, "--weights-only"));
  EXPECT_TRUE(has(bash, "'train --progress') words='auto always never' files=no ;;"));
  EXPECT_TRUE(has(bash, "'train --input' | 'train -i') words='' files=yes ;;"));
  EXPECT_TRUE(has(man, ".SS sestina train\n"));
  EXPECT_TRUE(has(man, "\\-\\-weights\\-only"));
  EXPECT_TRUE(has(man, "llama\\-8m,\\:llama\\-60m"));  // a list longer than a line can be broken
}

// A program that has started MPI would lose it, and with it the other ranks.
TEST(FrontDoor, NoOtherProgramTakesThePlaceOfOneWithRanksOfItsOwn) {
  char name[] = "sestina", verb[] = "bench", what[] = "kernels", key[] = "run.steps=1";
  char* words[] = {name, verb, what, key, nullptr};
  const RankSource ranks{[] { return 0L; }, false};
  expect_error(ExitCode::unavailable, {"bench is a program of its own", "-bench, and", "run_bench"}, [&] {
    become_program_of("bench", {4, words, ranks});
  });
}

TEST(FrontDoor, TheBarFitsTheTerminal) {
  const Progress progress{1234, 200000, 3.14159, 1234567, 86400};
  for (const int columns : {20, 50, 80, 100, 300}) {
    fmt::memory_buffer text;
    append_progress(text, progress, columns);
    EXPECT_LT(text.size(), static_cast<std::size_t>(columns)) << columns;
    EXPECT_TRUE(has(fmt::to_string(text), "1234/200000")) << columns;
    EXPECT_EQ(has(fmt::to_string(text), "loss 3.142"), columns >= 50) << columns;
  }
  EXPECT_TRUE(shows_progress("always", -1));
  EXPECT_FALSE(shows_progress("never", 1));
  EXPECT_FALSE(shows_progress("auto", -1));
}

constexpr const char* byte_deck =
    "[run]\nsteps = 100\n[model]\nfamily = \"llama\"\nhidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = "
    "2\n"
    "vocab_size = 300\n[schedule]\nwarmup_steps = 10\n[data]\nsequence_length = 8\n";

Options options_of(Deck& deck) {
  const Options options = Options::read(deck);
  deck.finish();
  return options;
}

Options read(const std::string& more, const std::vector<std::string>& overrides = {}) {
  Deck deck;
  deck.add_text(byte_deck + more, "deck", "");
  for (const auto& one : overrides) deck.add_override(one);
  return options_of(deck);
}

TEST(FrontDoor, BytesWithAnotherVocabularyAreRefusedUnlessChosen) {
  const std::string source = "[[data.source]]\npath = \"a.txt\"\n";
  expect_error(ExitCode::bad_data, {"vocab_size is 300", "data.tokenizer=bytes"},
               [&] { require_byte_vocabulary(read(source)); });
  require_byte_vocabulary(read(source, {"data.tokenizer=bytes"}));
  require_byte_vocabulary(read(source, {"model.vocab_size=256"}));
  require_byte_vocabulary(read(source, {"data.tokenizer=t.json"}));
  require_byte_vocabulary(read("[[data.source]]\nformat = \"npy\"\npath = \"a.npy\"\n"));
  expect_error(ExitCode::bad_data, {"300"}, [&] { require_byte_vocabulary(read(""), true); });
  EXPECT_TRUE(read(source, {"data.tokenizer=bytes"}).data.bytes_chosen);
  EXPECT_TRUE(read("[[data.source]]\npath = \"a.jsonl.gz\"\n").data.source[0].format == DataSource::Format::jsonl);
}

// Command line, then the folder of the model, then the deck; what a checkpoint stored was decided already.
TEST(FrontDoor, TheFolderOfTheModelBringsItsTokenizer) {
  const TemporaryFolder folder;
  ModelConfig config = preset("llama-8m");
  write_bytes(folder / "config.json", config.to_hf_json());
  write_bytes(folder / "deck.toml",
              std::string("[model]\nfamily = \"llama\"\nhidden_size = 16\n[data]\ntokenizer = \"deck.json\"\n"));
  DeckArguments arguments;
  arguments.files = {folder / "deck.toml"};
  arguments.hf = folder.path();  // replaces [model]
  const auto tokenizer = [&] {
    Deck deck = layered_deck(arguments);
    const Options options = options_of(deck);
    EXPECT_EQ(options.model.hidden_size, config.hidden_size);
    EXPECT_EQ(deck.resolved("data.tokenizer"), "\"" + options.data.tokenizer + "\"");
    return options.data.tokenizer;
  };
  EXPECT_EQ(tokenizer(), folder / "deck.json");
  write_bytes(folder / "tokenizer.json", "{}");
  EXPECT_EQ(tokenizer(), folder / "tokenizer.json");
  arguments.overrides = {"data.tokenizer=" + (folder / "other.json")};
  EXPECT_EQ(tokenizer(), folder / "other.json");
  Deck stored;  // a resume
  stored.add_text("[model]\nfrom_hf = \"" + folder.path() + "\"\n[data]\ntokenizer = \"/t/other.json\"\n", "checkpoint",
                  "");
  EXPECT_EQ(options_of(stored).data.tokenizer, "/t/other.json");
  arguments.overrides = {"model.hidden_size=32"};
  expect_error(ExitCode::bad_deck, {"model.hidden_size"}, [&] { tokenizer(); });
}

// Whose files name tokens: those of the model's folder or of the checkpoint that carries them; no other folder of their
// name.
TEST(FrontDoor, TheFilesThatNameTokensAreTheModels) {
  const TemporaryFolder folder;
  for (const char* place : {"model/", "checkpoint/hf/", "elsewhere/hf/"}) {
    write_bytes(folder / (std::string(place) + "config.json"), preset("llama-8m").to_hf_json());
    write_bytes(folder / (std::string(place) + "tokenizer.json"), "{}");
  }
  const auto data = [&](const std::string& text, const std::string& checkpoint,
                        std::vector<std::string> overrides = {}) {
    Deck deck;
    deck.add_text(text, "checkpoint", "");
    Options options = options_of(deck);
    take_companions(options, {.files = {}, .overrides = std::move(overrides)}, checkpoint);
    return options.data;
  };
  EXPECT_EQ(data("[model]\nfrom_hf = \"" + (folder / "model") + "\"\n", "").model_folder, folder / "model");
  const std::string other =
      "[model]\npreset = \"llama-8m\"\n[data]\ntokenizer = \"" + (folder / "elsewhere/hf/tokenizer.json") + "\"\n";
  EXPECT_EQ(data(other, "").model_folder, "");
  const DataOptions resumed = data(other, folder / "checkpoint");
  EXPECT_EQ(resumed.model_folder, folder / "checkpoint/hf");
  EXPECT_EQ(resumed.tokenizer, folder / "checkpoint/hf/tokenizer.json");
  const std::string named = folder / "elsewhere/hf/tokenizer.json";  // text is read by another one: the same model
  const DataOptions renamed = data(other, folder / "checkpoint", {"data.tokenizer=\"" + named + "\""});
  EXPECT_EQ(renamed.model_folder, folder / "checkpoint/hf");
}

// A verb asks for its deck several times; one that is edited meanwhile is not mixed with what it was.
TEST(FrontDoor, ADeckFileIsReadOnce) {
  const TemporaryFolder folder;
  write_bytes(folder / "run.toml", "[run]\nsteps = 3\n");
  DeckArguments arguments;
  arguments.files = {folder / "run.toml"};
  EXPECT_EQ(given_deck(arguments).integer("run.steps", 0), 3);
  write_bytes(folder / "run.toml", "[run]\nsteps = 4\n");
  const DeckArguments copied = arguments;
  EXPECT_EQ(layered_deck(copied).integer("run.steps", 0), 3);
  DeckArguments later;
  later.files = arguments.files;
  EXPECT_EQ(layered_deck(later).integer("run.steps", 0), 4);
}

TEST(FrontDoor, ALearningRateThatJumpsIsTold) {
  const Options before = read(""), longer = read("", {"run.steps=400"}),
                kept = read("", {"run.steps=400", "schedule.steps=100"});
  const std::string line = learning_rate_jump(before, longer, 100);
  EXPECT_TRUE(has(line, "schedule.steps=100")) << line;
  EXPECT_TRUE(has(line, "step 101 is 0.000")) << line;
  EXPECT_TRUE(has(line, "it would be 0.0001")) << line;
  EXPECT_EQ(learning_rate_jump(before, kept, 100), "");
  EXPECT_EQ(learning_rate_jump(before, before, 50), "");
}

// What starts, on what: of a model of 256 x 16 + 16 x 256 (tables), 4 x 16 x 16 (attention), 3 x 16 x 64 (MLP) and 3 x
// 16 (norms) = 12336 parameters.
TEST(FrontDoor, TheStartSaysWhatRunsWhere) {
  const Options options = read("[optimizer]\nkind = \"muon\"\nlr = 0.02\n[parallel]\ndp = 2\n",
                               {"model.vocab_size=256", "model.intermediate_size=64", "train.global_batch=8",
                                "train.micro_batch=2", "train.precision=fp32"});
  RunStart start;
  start.device = "OpenMP";
  start.threads = 3;
  start.data = "text a.txt: 100 tokens\ntext b.txt: 200 tokens\n";
  const auto lines = start_lines(options, start, plan_that_fits(options, 0, 2), 5'250'000'000);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_TRUE(has(lines[0], "sestina ") && has(lines[0], ", 2 ranks")) << lines[0];
  EXPECT_EQ(lines[1], "model      llama, 1 layers, 12336 parameters, fp32");
  EXPECT_EQ(lines[2], "optimizer  muon, peak lr 0.02, batch 8 x 8 tokens in micro-batches of 2");
  EXPECT_EQ(lines[3], "layout     2 x 1 x 1 ranks (data x tensor x pipeline)");
  EXPECT_EQ(lines[4], "device     OpenMP, 3 threads per rank");
  EXPECT_EQ(lines[5], "memory     0.00 GB planned, 5.25 GB available");
  EXPECT_EQ(lines[6], "data       text a.txt: 100 tokens");
  EXPECT_EQ(lines[7], "data       text b.txt: 200 tokens");
  start.precision = "bf16 widened to fp32";
  EXPECT_TRUE(has(start_lines(options, start, plan_that_fits(options, 0, 2), 0)[1], ", bf16 widened to fp32"));

  // AdamW in fp32: weights, gradients, two moments and the checkpoint's copy of weights and moments, 4 bytes each.
  const Options large = read("", {"model.vocab_size=256", "model.hidden_size=1024", "model.num_hidden_layers=20",
                                  "model.num_attention_heads=16"});
  const double gb = 28e-9 * static_cast<double>(parameter_count(large.model));
  double planned = 0;
  ASSERT_EQ(
      std::sscanf(start_lines(large, start, plan_that_fits(large), 0)[5].c_str(), "memory %lf GB planned", &planned),
      1);
  EXPECT_GE(planned, gb - 0.01);
  EXPECT_LE(planned, gb + 0.5);  // activations of a few tokens
}

TEST(FrontDoor, InitWritesADeckThatIsValid) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl", "{\"text\":\"x\"}\n");
  InitArguments arguments;
  arguments.name = "mine";
  arguments.data = folder / "a.jsonl";
  arguments.output = folder / "mine.toml";
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_init(arguments), 0);
  EXPECT_TRUE(has(testing::internal::GetCapturedStdout(),
                  fmt::format("{} train -i {}", program_invocation_name, arguments.output)));  // as it was called
  Deck deck;
  deck.add_file(arguments.output);
  const Options options = options_of(deck);
  EXPECT_EQ(options.data.source.at(0).path, folder / "a.jsonl");
  EXPECT_TRUE(options.data.source[0].format == DataSource::Format::jsonl);
  EXPECT_GE(options.train.micro_batch, 1);
  const RunSize size = size_of_run(7.3e6, 14 / 4.0, options.data.sequence_length, 256);
  EXPECT_EQ(options.train.global_batch, size.batch);
  EXPECT_EQ(options.run.steps, size.steps);
  EXPECT_EQ(options.schedule.lr, size.lr);
  EXPECT_EQ(options.optimizer.weight_decay, size.weight_decay);
  expect_error(ExitCode::cannot_create, {"mine.toml"}, [&] { run_init(arguments); });
}

// The rules by hand. At 12 tokens for each of nanochat's 110.1 M weights the batch is its 2^19 tokens, the rate
// 1e-3 (2^19 / 8192)^1/2 (256 / 768)^1/2 = 4.6e-3, the decay 0.1 8 8.192e6 / 1.32e9 = 0.005, and so 0.01.
TEST(FrontDoor, InitFollowsTheRulesForBatchRateAndDecay) {
  const RunSize contest = size_of_run(110.1e6, 1e12, 1024, 768);
  EXPECT_EQ(contest.batch, 512);
  EXPECT_EQ(contest.steps, 2520);
  EXPECT_NEAR(contest.lr, 4.6e-3, 1e-9);
  EXPECT_EQ(contest.weight_decay, 0.01);
  EXPECT_STREQ(contest.limit, "12 for each weight in products");
  // Twice the tokens: 2^0.383 = 1.3 of the batch, the same power of two; so twice the updates.
  EXPECT_EQ(size_of_run(220.2e6, 1e12, 1024, 768).batch, 512);
  EXPECT_EQ(size_of_run(220.2e6, 1e12, 1024, 768).steps, 5040);
  // 4 x 2.048e6 tokens: 1000 updates of 32 sequences of 256, where rate and decay are what they are said to be.
  const RunSize usual = size_of_run(8e6, 2.048e6, 256, 256);
  EXPECT_EQ(usual.batch, 32);
  EXPECT_EQ(usual.steps, 1000);
  EXPECT_NEAR(usual.lr, 1e-3, 1e-12);
  EXPECT_NEAR(usual.weight_decay, 0.1, 1e-12);
  EXPECT_STREQ(usual.limit, "the text four times");
  // A quarter of the text: 8 sequences, half of the rate, twice the decay; with less the run stays as long.
  const RunSize little = size_of_run(8e6, 0.512e6, 256, 256);
  EXPECT_EQ(little.batch, 8);
  EXPECT_NEAR(little.lr, 5e-4, 1e-12);
  EXPECT_NEAR(little.weight_decay, 0.2, 1e-12);
  EXPECT_EQ(size_of_run(8e6, 100, 256, 256).steps, 1000);
  EXPECT_STREQ(size_of_run(8e6, 100, 256, 256).limit, "1000 updates of 8 sequences");
  EXPECT_STREQ(size_of_run(8e6, 0, 256, 256).limit, "1000 updates of 32 sequences");
}

// 100 kB are some 25,000 tokens: two batches of 32 x 256, not of 32 x 512.
TEST(FrontDoor, InitTakesSequencesOfWhichTheTextHoldsTwoBatches) {
  const TemporaryFolder folder;
  write_bytes(folder / "texts/a.txt", std::string(60'000, 'x'));
  write_bytes(folder / "texts/more/b.txt", std::string(40'000, 'x'));
  const std::pair<const char*, std::int64_t> cases[] = {{"texts", 256}, {"texts/more", 128}, {"texts/a.txt", 128}};
  for (const auto& [data, length] : cases) {
    InitArguments arguments;
    arguments.name = fmt::format("mine{}", length + std::string_view(data).size());
    arguments.data = folder / data;
    arguments.output = folder / (arguments.name + ".toml");
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_init(arguments), 0);
    testing::internal::GetCapturedStdout();
    Deck deck;
    deck.add_file(arguments.output);
    EXPECT_EQ(options_of(deck).data.sequence_length, length) << data;
  }
}

}  // namespace
}  // namespace sestina

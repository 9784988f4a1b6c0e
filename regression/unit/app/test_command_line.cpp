// The command line: each verb's words become its arguments; every wrong word is a usage error that says what is
// allowed.
#include <gtest/gtest.h>

#include "app/command/command_line.hpp"

namespace sestina {
namespace {

Command parse(std::vector<std::string> words) {
  words.insert(words.begin(), "sestina");
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

template <class Arguments>
Arguments as(const std::vector<std::string>& words) {
  return std::get<Arguments>(parse(words));
}

void expect_usage(const std::vector<std::string>& words, const std::string& part) {
  try {
    parse(words);
    ADD_FAILURE() << "accepted: " << fmt::format("{}", fmt::join(words, " "));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << error.what();
  }
}

TEST(CommandLine, Train) {
  const auto a =
      as<TrainArguments>({"train", "-i", "a.toml", "run.steps=3", "--kokkos-num-threads=2", "-t", "01:00:01", "-r",
                          "auto", "-d", "out", "-n", "--weights-only", "data.source=[{path=\"a b\"}]"});
  EXPECT_EQ(a.deck.files, std::vector<std::string>{"a.toml"});
  EXPECT_EQ(a.deck.overrides, (std::vector<std::string>{"run.steps=3", "data.source=[{path=\"a b\"}]"}));
  EXPECT_EQ(a.kokkos, std::vector<std::string>{"--kokkos-num-threads=2"});
  EXPECT_EQ(a.walltime, 3601);
  EXPECT_EQ(a.resume, "auto");
  EXPECT_EQ(a.run_dir, "out");
  EXPECT_TRUE(a.dry_run);
  EXPECT_TRUE(a.weights_only);
}

TEST(CommandLine, SeveralDecks) {
  const auto a = as<PlanArguments>({"plan", "-i", "a.toml", "parallel.dp=2", "-i", "b.toml", "parallel.tp=2"});
  EXPECT_EQ(a.deck.files, (std::vector<std::string>{"a.toml", "b.toml"}));
  EXPECT_EQ(a.deck.overrides, (std::vector<std::string>{"parallel.dp=2", "parallel.tp=2"}));
}

TEST(CommandLine, PromptsAndStops) {
  const auto g = as<GenerateArguments>({"generate",
                                        "-r",
                                        "c",
                                        "--prompt",
                                        "a b",
                                        "--prompt-file",
                                        "f",
                                        "-",
                                        "--prompt",
                                        "[x,y]",
                                        "--stop",
                                        "\n",
                                        "--stop",
                                        "[,]",
                                        "--top-p",
                                        "0.9",
                                        "--repetition-penalty",
                                        "1.2",
                                        "--samples",
                                        "3",
                                        "run.seed=1"});
  ASSERT_EQ(g.prompts.size(), 4u);
  EXPECT_EQ(g.prompts[0].text, "a b");
  EXPECT_EQ(g.prompts[1].text, "f");
  EXPECT_TRUE(g.prompts[1].file);
  EXPECT_EQ(g.prompts[2].text, "[x,y]");
  EXPECT_EQ(g.prompts[3].text, "-");
  EXPECT_TRUE(g.prompts[3].file);
  EXPECT_EQ(g.stops, (std::vector<std::string>{"\n", "[,]"}));
  EXPECT_EQ(g.top_p, 0.9);
  EXPECT_EQ(g.repetition_penalty, 1.2);
  EXPECT_EQ(g.samples, 3);
  EXPECT_EQ(g.deck.overrides, (std::vector<std::string>{"run.seed=1"}));
  EXPECT_EQ(as<EvalArguments>({"eval", "-r", "c", "--choices", "q.jsonl"}).choices, "q.jsonl");
}

TEST(CommandLine, EveryVerb) {
  EXPECT_TRUE(as<PlanArguments>({"plan", "-i", "a", "--json"}).json);
  EXPECT_EQ(as<PlanArguments>({"plan", "-i", "a", "--reading", "canzona-paper"}).reading, "canzona-paper");
  EXPECT_EQ(as<EvalArguments>({"eval", "-r", "c", "-i", "a"}).checkpoint, "c");
  const auto hessian = as<HessianArguments>({"diagnose", "hessian", "-r", "c", "-i", "a", "--vectors", "7", "--json"});
  EXPECT_EQ(hessian.checkpoint, "c");
  EXPECT_EQ(hessian.vectors, 7);
  EXPECT_TRUE(hessian.json);
  const auto g = as<GenerateArguments>({"generate", "--hf", "h", "--prompt", "-x [a]", "--tokens", "5", "--temperature",
                                        "0", "--top-k", "3", "--seed", "9"});
  EXPECT_EQ(g.hf, "h");
  ASSERT_EQ(g.prompts.size(), 1u);
  EXPECT_EQ(g.prompts[0].text, "-x [a]");
  EXPECT_FALSE(g.prompts[0].file);
  EXPECT_EQ(g.tokens, 5);
  EXPECT_EQ(g.temperature, 0);
  EXPECT_EQ(g.top_k, 3);
  EXPECT_EQ(g.seed, 9u);
  const auto t = as<DataTokenizeArguments>({"data", "tokenize", "a", "b", "-o", "c", "--no-end"});
  EXPECT_EQ(t.inputs, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(t.end_of_document);
  EXPECT_EQ(as<DataTrainTokenizerArguments>({"data", "train-tokenizer", "a", "-o", "b"}).special,
            std::vector<std::string>{"<|endoftext|>"});
  const std::vector<std::string> special = {"[PAD]", "<s>"};
  EXPECT_EQ(as<DataTrainTokenizerArguments>(
                {"data", "train-tokenizer", "a", "-o", "b", "--special", "[PAD]", "--special", "<s>"})
                .special,
            special);
  EXPECT_EQ(as<DataInspectArguments>({"data", "inspect", "x", "--format", "npy"}).format, "npy");
  EXPECT_EQ(as<DataVerifyArguments>({"data", "verify", "x", "y", "--vocab-size", "300"}).paths.size(), 2u);
  EXPECT_EQ(as<CheckpointListArguments>({"checkpoint", "list", "r"}).run_dir, "r");
  EXPECT_TRUE(as<CheckpointVerifyArguments>({"checkpoint", "verify", "r", "--full"}).full);
  EXPECT_EQ(as<CheckpointExportArguments>({"checkpoint", "export", "c", "-o", "h"}).output, "h");
  EXPECT_EQ(as<CheckpointConvertArguments>({"checkpoint", "convert", "c", "-o", "r"}).shards, 1);
  EXPECT_EQ(as<CheckpointConvertArguments>({"checkpoint", "convert", "c", "-o", "r", "--shards", "5"}).shards, 5);
  EXPECT_EQ(as<CheckpointImportArguments>({"checkpoint", "import", "h", "-d", "r", "run.seed=3"}).deck.overrides.size(),
            1u);
  EXPECT_EQ(as<ReportArguments>({"report", "a", "b"}).run_dirs.size(), 2u);
  EXPECT_EQ(as<ReportArguments>({"report", "--compare", "a", "--target", "3.28", "--json"}).target, 3.28);
  EXPECT_EQ(as<SweepArguments>({"sweep", "-i", "a", "-d", "s", "sweep.grid={\"schedule.lr\"=[1]}"}).dir, "s");
  EXPECT_EQ(as<BenchStepArguments>({"bench", "step", "-i", "a", "--steps", "7"}).steps, 7);
  EXPECT_TRUE(as<BenchKernelsArguments>({"bench", "kernels", "-i", "a", "--json"}).json);
  EXPECT_EQ(as<BenchIoArguments>({"bench", "io", "-i", "a", "--size", "64", "--json"}).mebibytes, 64);
  EXPECT_FALSE(as<InfoArguments>({"info"}).json);
}

TEST(CommandLine, HelpAndVersionAreText) {
  EXPECT_NE(as<ShowText>({"-h"}).text.find("train"), std::string::npos);
  EXPECT_NE(as<ShowText>({"train", "-h"}).text.find("--walltime"), std::string::npos);
  EXPECT_NE(as<ShowText>({"data", "tokenize", "--help"}).text.find("--separator"), std::string::npos);
  EXPECT_EQ(as<ShowText>({"-V"}).text.rfind("sestina ", 0), 0u);
}

TEST(CommandLine, MistakesAreNamed) {
  expect_usage({"data"}, "no verb given, allowed tokenize");
  expect_usage({"trian"}, "unknown verb, got trian, did you mean train?");
  expect_usage({"-x"}, "unknown verb, got -x");
  expect_usage({"data"}, "sestina data: no verb given, allowed tokenize");
  expect_usage({"data", "tokenise"}, "did you mean tokenize?");
  expect_usage({"plan", "--reading", "mine"}, "unknown, got mine, allowed canzona-paper");
  expect_usage({"plan", "--jsno"}, "unknown option, got --jsno, did you mean --json?");
  expect_usage({"train", "a.toml"}, "a deck is given with -i a.toml");
  expect_usage({"train", "-i"}, "--input");
  expect_usage({"train", "-t", "soon"}, "-t: not a duration, got soon");
  expect_usage({"train", "-t", "00:00:00"}, "-t: not a duration");
  expect_usage({"eval", "-i", "a"}, "give -r CHECKPOINT or --hf DIR");
  expect_usage({"diagnose", "hessian", "-i", "a"}, "give -r CHECKPOINT");
  expect_usage({"eval", "-r", "c", "--hf", "h"}, "excludes");
  expect_usage({"generate", "-r", "c"}, "give --prompt TEXT");
  expect_usage({"generate", "-r", "c", "-", "--prompt", "-"}, "got it twice");
  expect_usage({"generate", "-r", "c", "-", "--stop", ""}, "--stop is empty");
  expect_usage({"generate", "-r", "c", "-", "--top-p", "1.5"}, "--top-p");
  expect_usage({"generate", "-r", "c", "-", "--samples", "0"}, "--samples");
  expect_usage({"generate", "-r", "c", "--prompt", "x", "--tokens", "-1"}, "--tokens");
  expect_usage({"checkpoint", "convert", "c"}, "--output is required");
  expect_usage({"checkpoint", "convert", "c", "-o", "r", "--shards", "0"}, "--shards");
  expect_usage({"checkpoint", "list", "a", "b"}, "unexpected argument, got b");
  expect_usage({"data", "verify"}, "nothing to check");
  expect_usage({"data", "inspect", "x", "--format", "csv"}, "--format");
}

}  // namespace
}  // namespace sestina

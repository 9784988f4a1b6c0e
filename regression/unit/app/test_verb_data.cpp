// The data verbs from end to end on the text of the tests.
#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "../io/test_files.hpp"
#include "app/command/verbs.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TemporaryFolder;

const std::string data_folder = std::string(SESTINA_SOURCE_DIR) + "/regression/data";

template <class Verb, class Arguments>
std::string printed(Verb verb, const Arguments& arguments) {
  testing::internal::CaptureStdout();
  const int code = verb(arguments);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  return text;
}

DataTrainTokenizerArguments training(const TemporaryFolder& folder) {
  DataTrainTokenizerArguments arguments;
  arguments.inputs = {data_folder};
  arguments.output = folder / "tokenizer.json";
  arguments.vocab_size = 400;
  arguments.json = true;
  return arguments;
}

DataTokenizeArguments tokenizing(const TemporaryFolder& folder) {
  DataTokenizeArguments arguments;
  arguments.inputs = {data_folder};
  arguments.output = folder / "out/tokens";
  arguments.json = true;
  return arguments;
}

TEST(VerbData, TrainsTokenizesInspectsAndVerifies) {
  const TemporaryFolder folder;
  const auto trained = json::parse(printed(run_data_train_tokenizer, training(folder)));
  EXPECT_EQ(trained["vocab_size"], 400);
  auto tokenize = tokenizing(folder);
  tokenize.tokenizer = folder / "tokenizer.json";
  const auto tokenized = json::parse(printed(run_data_tokenize, tokenize));
  EXPECT_EQ(tokenized["documents"], 3);
  EXPECT_EQ(tokenized["bytes"], trained["bytes"]);
  EXPECT_GT(tokenized["bytes_per_token"], 1.5);

  DataInspectArguments inspect;
  inspect.path = folder / "out/tokens.idx";
  inspect.tokenizer = tokenize.tokenizer;
  inspect.tokens = 5;
  inspect.json = true;
  const auto seen = json::parse(printed(run_data_inspect, inspect));
  EXPECT_EQ(seen["format"], "megatron");
  EXPECT_EQ(seen["type"], "u16");
  EXPECT_EQ(seen["tokens"], tokenized["tokens"]);
  EXPECT_EQ(seen["documents"], 3);
  EXPECT_EQ(seen["bytes_per_token"], tokenized["bytes_per_token"]);
  EXPECT_EQ(seen["first"].size(), 5u);
  EXPECT_TRUE(test::read_bytes(data_folder + "/harbour.txt").starts_with(seen["text"].get<std::string>()));

  DataVerifyArguments verify;
  verify.paths = {folder / "out/tokens"};
  verify.vocab_size = 400;
  EXPECT_NE(printed(run_data_verify, verify).find(": ok"), std::string::npos);
  verify.vocab_size = 200;
  expect_error(ExitCode::bad_data, {"out/tokens.bin", "0 to 199"}, [&] { run_data_verify(verify); });
  std::filesystem::resize_file(folder / "out/tokens.bin", 1000);
  verify.vocab_size = 0;
  expect_error(ExitCode::bad_data, {"out/tokens.idx", "1000 bytes"}, [&] { run_data_verify(verify); });
}

TEST(VerbData, TokenizesBytesOfPackedFilesInFolders) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "in/deep");
  gzFile file = gzopen((folder / "in/deep/page.rst.gz").c_str(), "wb");
  gzwrite(file, "one\n%%\ntwo", 10);
  gzclose(file);
  test::write_bytes(folder / "in/a.txt", "xy");
  test::write_bytes(folder / "in/picture.png", "no text");
  auto tokenize = tokenizing(folder);
  tokenize.inputs = {folder / "in"};
  tokenize.separator = "%%";
  const auto tokenized = json::parse(printed(run_data_tokenize, tokenize));
  EXPECT_EQ(tokenized["files"], 2);
  EXPECT_EQ(tokenized["documents"], 3);
  EXPECT_EQ(tokenized["tokens"], 9);
  EXPECT_EQ(test::read_bytes(folder / "out/tokens.bin").substr(0, 6), std::string("x\0y\0o\0", 6));
}

TEST(VerbData, VerifiesTheSourcesOfADeck) {
  const TemporaryFolder folder;
  test::write_bytes(
      folder / "deck.toml",
      "[run]\nsteps = 1\n[model]\nfamily = \"llama\"\nhidden_size = 16\nintermediate_size = 16\n"
      "num_hidden_layers = 1\nnum_attention_heads = 2\nvocab_size = 256\nmax_position_embeddings = 32\n"
      "[data]\nsequence_length = 32\nvalidation_fraction = 0.1\n[[data.source]]\nformat = \"text\"\npath = \"" +
          data_folder + "\"\n");
  DataVerifyArguments verify;
  verify.deck.files = {folder / "deck.toml"};
  verify.json = true;
  const auto result = json::parse(printed(run_data_verify, verify));
  ASSERT_EQ(result["checked"].size(), 2u);
  EXPECT_GT(result["checked"][0]["windows"], result["checked"][1]["windows"]);
  test::write_bytes(folder / "short.txt", "A window needs more than this.");
  verify.deck.overrides = {"data.source=[{format=\"text\", path=\"" + (folder / "short.txt") + "\"}]"};
  expect_error(ExitCode::bad_data, {"short.txt", "30 tokens", "needs 33 tokens"}, [&] { run_data_verify(verify); });
}

TEST(VerbData, RefusesInputsWithoutText) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "in/empty.txt", "");
  auto tokenize = tokenizing(folder);
  tokenize.inputs = {folder / "in"};
  expect_error(ExitCode::bad_data, {"no text"}, [&] { run_data_tokenize(tokenize); });
  EXPECT_FALSE(std::filesystem::exists(folder / "out/tokens.bin"));
  tokenize.inputs = {folder / "nowhere"};
  expect_error(ExitCode::input_missing, {"nowhere"}, [&] { run_data_tokenize(tokenize); });
  auto train = training(folder);
  train.inputs = {folder / "in"};
  expect_error(ExitCode::bad_data, {"no text"}, [&] { run_data_train_tokenizer(train); });
}

}  // namespace
}  // namespace sestina

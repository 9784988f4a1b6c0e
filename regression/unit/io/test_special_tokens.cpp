// One answer to which tokens begin and end texts, from all the files that name them. The orders are those of
// transformers 5.24, tried on the same files.
#include "io/tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/hf/hf_companions.hpp"
#include "io/tokens/data_loader.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TemporaryFolder;
using EndIds = std::vector<std::int64_t>;

// Letters a to j, and added tokens from id 10 on.
json tokenizer_json(const std::vector<std::string>& added, const json& post_processor = nullptr) {
  json j = json::parse(R"({"normalizer": null, "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [],
    "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "j": 9}}})");
  int id = 10;
  for (const std::string& token : added)
    j["added_tokens"].push_back({{"id", id++}, {"content", token}, {"special", true}});
  j["post_processor"] = post_processor;
  return j;
}

class SpecialTokensOf : public testing::Test {
 protected:
  void write(const char* name, const json& object) { test::write_bytes(folder_ / name, object.dump()); }
  void write_tokenizer(const std::vector<std::string>& added, const json& post_processor = nullptr) {
    write("tokenizer.json", tokenizer_json(added, post_processor));
  }
  SpecialTokens find(const std::string& end_token = "", const std::string& begin_token = "") {
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(folder_ / "tokenizer.json"));
    model_.vocab_size = 20;
    return find_special_tokens({.tokenizer = tokenizer_.get(),
                                .tokenizer_path = folder_ / "tokenizer.json",
                                .folder = "",
                                .model = &model_,
                                .begin_token = begin_token,
                                .end_token = end_token});
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelConfig model_;
};

TEST_F(SpecialTokensOf, AListOfEndsInTheConfigs) {
  write_tokenizer({"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"});
  write("tokenizer_config.json", {{"bos_token", "<|begin_of_text|>"}, {"eos_token", {{"content", "<|eot_id|>"}}}});
  write("config.json", {{"eos_token_id", {11, 12}}, {"bos_token_id", 10}, {"pad_token_id", 11}});
  SpecialTokens found = find();
  EXPECT_EQ(found.ends, (EndIds{11, 12}));
  EXPECT_EQ(found.end, 12);  // between documents: the tokenizer's
  EXPECT_EQ(found.begin, 10);
  EXPECT_EQ(found.pad, 11);
  EXPECT_TRUE(found.stops_at(12));
  EXPECT_FALSE(found.stops_at(10));
  write("generation_config.json", {{"eos_token_id", {12, 10}}});  // before config.json
  EXPECT_EQ(find().ends, (EndIds{12, 10}));
  write("generation_config.json", {{"eos_token_id", nullptr}});
  EXPECT_EQ(find().ends, (EndIds{11, 12}));
  write("generation_config.json", {{"eos_token_id", 12}});
  found = find();
  EXPECT_EQ(found.ends, (EndIds{12}));
  EXPECT_NE(found.ends_source.find("generation_config.json: eos_token_id"), std::string::npos);
}

TEST_F(SpecialTokensOf, WhateverItsNameIs) {
  write_tokenizer({"[BEGIN]", "[FINISH]", "<|endoftext|>"});
  EXPECT_EQ(find().end, 12);  // nothing but its name says so
  EXPECT_EQ(find().ends, (EndIds{12}));
  EXPECT_EQ(find().begin, -1);
  write("config.json", {{"eos_token_id", 11}});
  EXPECT_EQ(find().end, 11);
  write("tokenizer_config.json", {{"eos_token", "<|endoftext|>"}, {"bos_token", "[BEGIN]"}});
  EXPECT_EQ(find().end, 12);
  EXPECT_EQ(find().ends, (EndIds{11}));
  write("special_tokens_map.json", {{"eos_token", "[FINISH]"}, {"pad_token", "<|endoftext|>"}});
  EXPECT_EQ(find().end, 11);  // before tokenizer_config.json,
  EXPECT_EQ(find().begin, 10);
  EXPECT_EQ(find().pad, 12);
  write("tokenizer_config.json", {{"eos_token", "<|endoftext|>"}, {"added_tokens_decoder", json::object()}});
  EXPECT_EQ(find().end, 12);           // but not before one of newer kind
  EXPECT_EQ(find("[BEGIN]").end, 10);  // the deck wins
  EXPECT_EQ(find("[BEGIN]").ends, (EndIds{10, 11}));
  EXPECT_EQ(find("", "[FINISH]").begin, 11);
}

TEST_F(SpecialTokensOf, NoneIsSaid) {
  write_tokenizer({"[FINISH]"});
  const SpecialTokens found = find();
  EXPECT_EQ(found.end, -1);
  EXPECT_TRUE(found.ends.empty());
  EXPECT_TRUE(found.start().empty());
  const std::string defect = missing_end(found, {.tokenizer = tokenizer_.get(), .tokenizer_path = "T"});
  EXPECT_NE(defect.find("data.end_token"), std::string::npos);
  EXPECT_EQ(missing_end(find("[FINISH]"), {.tokenizer = tokenizer_.get()}), "");
  EXPECT_EQ(find("10").end, 10);  // an id will do
  expect_error(ExitCode::bad_deck, {"data.end_token", "[OTHER]"}, [&] { find("[OTHER]"); });
  expect_error(ExitCode::bad_deck, {"data.begin_token", "20"}, [&] { find("", "20"); });  // beyond the vocabulary
  write("config.json", {{"eos_token_id", 99}});
  EXPECT_TRUE(find().ends.empty());
  test::write_bytes(folder_ / "config.json", "[");
  expect_error(ExitCode::bad_data, {"config.json", "JSON object"}, [&] { find(); });
}

// An id that config.json does not say is a number of the class, which no document is to be ended with.
TEST_F(SpecialTokensOf, TheClassComesLast) {
  write_tokenizer({"[FINISH]"});
  model_.eos_token_id = model_.bos_token_id = 1;
  EXPECT_EQ(find().end, 1);  // of a checkpoint, which has no config.json
  write("config.json", {{"model_type", "llama"}});
  EXPECT_EQ(find().end, -1);
  EXPECT_EQ(find().begin, -1);
  EXPECT_EQ(find().ends, (EndIds{1}));
  write("tokenizer_config.json", {{"eos_token", "[FINISH]"}});
  EXPECT_EQ(find().ends, (EndIds{10}));
}

json template_of(const std::vector<std::string>& ahead) {
  json single = json::array(), tokens = json::object();
  for (const std::string& name : ahead) {
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    tokens[name] = {{"id", name}, {"ids", {name == "<s>" ? 10 : 11}}, {"tokens", {name}}};
  }
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  single.push_back({{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", json::array()}, {"special_tokens", tokens}};
}

TEST_F(SpecialTokensOf, ThePostProcessorsPrefix) {
  using Prefix = std::vector<std::int32_t>;
  const auto prefix = [&](const json& post_processor) {
    write_tokenizer({"<s>", "</s>"}, post_processor);
    return find().prefix;
  };
  const json byte_level = {{"type", "ByteLevel"}, {"trim_offsets", true}};
  EXPECT_EQ(prefix(nullptr), Prefix{});
  EXPECT_EQ(prefix(byte_level), Prefix{});
  EXPECT_EQ(prefix(template_of({"<s>"})), Prefix{10});
  EXPECT_EQ(prefix(template_of({"<s>", "<x>"})), (Prefix{10, 11}));
  EXPECT_EQ(prefix(template_of({})), Prefix{});
  EXPECT_EQ(prefix({{"type", "Sequence"}, {"processors", {byte_level, template_of({"<s>"})}}}), Prefix{10});
  EXPECT_EQ(prefix({{"type", "RobertaProcessing"}, {"sep", {"</s>", 11}}, {"cls", {"<s>", 10}}}), Prefix{10});
  EXPECT_EQ(find().start(), Prefix{10});
  for (const json& bad :
       {json{{"type", "Odd"}}, json{{"type", "TemplateProcessing"}}, json(3), json{{"type", 3}},
        json{{"type", "BertProcessing"}, {"cls", {"<s>"}}}, json{{"type", "BertProcessing"}, {"cls", {"<s>", -1}}}})
    expect_error(ExitCode::bad_data, {"post_processor"}, [&] { prefix(bad); });
  // transformers does not look at this next to a tokenizer.json, see tokenization_utils_base.py.
  write_tokenizer({"<s>", "</s>"});
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "<s>"}});
  EXPECT_EQ(find().prefix, Prefix{});
  EXPECT_EQ(find().start(), Prefix{10});
}

TEST_F(SpecialTokensOf, ExportsKeepThem) {
  write_tokenizer({"[BEGIN]", "[FINISH]", "[PAD]"});
  write("special_tokens_map.json", {{"eos_token", "[FINISH]"}, {"bos_token", "[BEGIN]"}, {"pad_token", "[PAD]"}});
  test::write_bytes(folder_ / "chat_template.jinja", "{{ messages }}");
  const TemporaryFolder target;
  ModelConfig config;
  config.vocab_size = 20;
  write_hf_tokenizer(target.path(), folder_ / "tokenizer.json", config);
  EXPECT_EQ(config.eos_token_id, 11);
  EXPECT_EQ(config.bos_token_id, 10);
  EXPECT_EQ(config.pad_token_id, 12);
  EXPECT_EQ(json::parse(generation_json(config))["pad_token_id"], 12);
  for (const char* name : {"tokenizer.json", "special_tokens_map.json", "chat_template.jinja"})
    EXPECT_EQ(test::read_bytes(target / name), test::read_bytes(folder_ / name)) << name;
  EXPECT_EQ(json::parse(test::read_bytes(target / "tokenizer_config.json"))["pad_token"], "[PAD]");
}

// Documents that are tokenised have their end and, when a model is asked about them, their prefix.
TEST_F(SpecialTokensOf, DocumentsHaveThem) {
  write_tokenizer({"<s>", "[FINISH]"}, template_of({"<s>"}));
  find();
  test::write_bytes(folder_ / "d.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b\"}\n");
  const DataSource source{DataSource::Format::jsonl, folder_ / "d.jsonl", 1};
  const auto tokens = [&](const DocumentMarks& marks) {
    const auto opened = open_source(source, tokenizer_.get(), 20, marks);
    std::vector<std::int32_t> ids(opened->size());
    opened->read(0, ids.size(), ids.data());
    return ids;
  };
  EXPECT_EQ(tokens({11}), (std::vector<std::int32_t>{0, 1, 11, 1, 11}));
  EXPECT_EQ(tokens({11, {10}}), (std::vector<std::int32_t>{10, 0, 1, 11, 10, 1, 11}));
}

}  // namespace
}  // namespace sestina

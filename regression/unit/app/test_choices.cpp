// Evaluation next to its formulas: standard errors, multiple choice by hand and from the logits.
#include "app/verbs/choices.hpp"
#include "parallel/stage/stages_of.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace sestina {
namespace {

namespace fs = std::filesystem;

TEST(MeanError, IsTheDeviationOfTheMean) {
  const MeanError e = mean_error({1, 2, 3, 6});  // squares of the distances from 3: 4 + 1 + 0 + 9
  EXPECT_DOUBLE_EQ(e.mean, 3);
  EXPECT_DOUBLE_EQ(e.error, std::sqrt(14.0 / 3 / 4));
  EXPECT_TRUE(std::isnan(mean_error({5}).error));
}

TEST(Choices, AccuracyByHand) {
  // Sums, and per byte: (-2, -3 / 4) -> 0, 1; (-4, -1) -> 1, 1; (-6 / 3, -3, -9 / 9) -> 1, 2; equal ones -> the first.
  const std::vector<Question> questions = {
      {"", {"a", "abcd"}, 1, 1}, {"", {"a", "b"}, 1, 2}, {"", {"abc", "a", "abcdefghi"}, 1, 3}, {"", {"a", "b"}, 0, 4}};
  const ChoiceResult r = choice_result(questions, {-2, -3, -4, -1, -6, -3, -9, -5, -5});
  EXPECT_EQ(r.questions, 4u);
  EXPECT_DOUBLE_EQ(r.accuracy.mean, 0.75);
  EXPECT_DOUBLE_EQ(r.accuracy.error, std::sqrt(0.75 * 0.25 / 3));
  EXPECT_DOUBLE_EQ(r.accuracy_normalised.mean, 0.75);
}

ModelConfig byte_model() {
  ModelConfig c = family_defaults(Family::llama);
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_hidden_layers = 1;
  c.num_attention_heads = c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.vocab_size = 256;
  c.max_position_embeddings = 12;
  c.initializer_range = 0.3;
  return c;
}

TEST(Choices, ScoresAreSumsOfLogProbabilities) {
  const std::vector<Question> questions = {{"2+2=", {"4", "five"}, 0, 1}, {"a long context ", {"ends", " x"}, 1, 2}};
  const auto choices = choice_tokens(questions, "q.jsonl", Codec{}, {}, byte_model());
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[1].begin, 4u);
  EXPECT_EQ(choices[2].ids.size(), 13u);  // 12 positions and the last target: cut in front
  EXPECT_EQ(choices[2].begin, 9u);
  const auto alone = make_lone_communicator();
  Options options;
  options.model = byte_model();
  const StagesOf<Host, float> stages;
  Evaluator three(stages, options, {3, 12}, *alone), one(stages, options, {1, 12}, *alone);
  three.stage().initialise(1);
  one.stage().initialise(1);
  const std::vector<double> scores = score_choices(three, choices);
  ASSERT_EQ(scores.size(), 4u);
  for (std::size_t c = 0; c < choices.size(); ++c) {
    std::vector<std::int32_t> window = choices[c].ids;
    window.resize(13, 0);
    one.loss({window.data(), nullptr});
    double expected = 0;
    for (std::size_t at = choices[c].begin; at < choices[c].ids.size(); ++at) {
      std::vector<float> logits(256);
      one.logits(static_cast<int>(at) - 1, logits.data());
      double sum = 0;
      for (const float z : logits) sum += std::exp(static_cast<double>(z));
      expected += logits[static_cast<std::size_t>(choices[c].ids[at])] - std::log(sum);
    }
    EXPECT_NEAR(scores[c], expected, 1e-5 * std::abs(expected)) << c;
  }
}

class ChoicesFile : public testing::Test {
 protected:
  fs::path path_ = fs::temp_directory_path() / ("sestina_choices_" + std::to_string(getpid()) + ".jsonl");
  void TearDown() override { fs::remove(path_); }
  std::string failure(const std::string& text) {
    std::ofstream(path_) << text;
    try {
      read_questions(path_.string());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return error.what();
    }
    return "";
  }
};

TEST_F(ChoicesFile, BadLinesAreNamed) {
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 1})";
  EXPECT_EQ(failure(good + "\n\n" + good), "");
  for (const char* bad :
       {"{", "[]", R"({"choices": ["b", "c"], "answer": 1})", R"({"context": "a", "answer": 1})",
        R"({"context": "a", "choices": ["b", "c"]})", R"({"context": 3, "choices": ["b", "c"], "answer": 1})",
        R"({"context": "a", "choices": ["b"], "answer": 0})", R"({"context": "a", "choices": ["b", ""], "answer": 0})",
        R"({"context": "a", "choices": ["b", "c"], "answer": 2})",
        R"({"context": "a", "choices": ["b", "c"], "answer": -1})",
        R"({"context": "a", "choices": ["b", "c"], "answer": "0"})"})
    EXPECT_NE(failure(good + "\n\n" + bad + "\n").find(":3: "), std::string::npos) << bad;
  EXPECT_NE(failure("\n").find("no question"), std::string::npos);
  fs::remove(path_);
  EXPECT_THROW(read_questions(path_.string()), Error);
}

// As transformers encodes it: the begin token is ahead of a context, and is the context where there is none.
TEST(Choices, TextsBeginAsTheTokenizerSays) {
  SpecialTokens tokens;
  tokens.begin = 2;
  tokens.end = 3;
  const auto ids = [&](const std::string& context) {
    return choice_tokens({{context, {"x", "yz"}, 0, 1}}, "q.jsonl", Codec{}, tokens, byte_model());
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids("c")[1].ids, (Ids{'c', 'y', 'z'}));
  EXPECT_EQ(ids("")[0].ids, (Ids{2, 'x'}));
  tokens.prefix = {7, 8};
  EXPECT_EQ(ids("c")[1].ids, (Ids{7, 8, 'c', 'y', 'z'}));
  EXPECT_EQ(ids("c")[1].begin, 3u);
  EXPECT_EQ(ids("")[0].ids, (Ids{7, 8, 'x'}));
  EXPECT_EQ(ids("")[0].begin, 2u);
}

TEST(Choices, WhatDoesNotFitIsNamed) {
  const auto failure = [](const Question& question, std::int64_t end) {
    try {
      SpecialTokens tokens;
      tokens.end = end;
      choice_tokens({question}, "q.jsonl", Codec{}, tokens, byte_model());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(failure({"", {"a", "b"}, 0, 7}, -1).find("q.jsonl:7: \"context\" is empty"), std::string::npos);
  EXPECT_EQ(failure({"", {"a", "b"}, 0, 7}, 10), "");
  EXPECT_EQ(failure({"c", {"a", std::string(12, 'x')}, 0, 8}, -1), "");
  EXPECT_NE(failure({"c", {"a", std::string(13, 'x')}, 0, 8}, -1).find("q.jsonl:8: a choice has 13 tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace sestina

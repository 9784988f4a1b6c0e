#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/bpe_train.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "regression/unit/io/test_files.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using test::expect_error;

std::string sample_text(int lines) {
  static const char* kWords[] = {"the",    "river", "stone", "door",        "winter",       "lamp", "name",
                                 "turned", "again", "isn't", "Stra\u00DFe", "\u4E2D\u6587", "42"};
  std::string text;
  std::uint32_t state = 7;
  for (int i = 0; i < lines * 9; ++i) {
    state = state * 1664525u + 1013904223u;
    text += kWords[(state >> 20) % 13 * ((state >> 9) % 13) / 13];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  return text;
}

// The definition, literally: all pairs are counted again before every merge.
LearnedBpe learn_plainly(const std::vector<CountedPiece>& pieces, std::size_t tokens) {
  LearnedBpe result;
  std::map<std::string, std::int32_t> ids;
  for (unsigned char byte : bytes_by_symbol()) {
    ids[std::string(1, static_cast<char>(byte))] = static_cast<std::int32_t>(result.tokens.size());
    result.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::vector<std::vector<std::int32_t>> words;
  for (const auto& piece : pieces) {
    words.emplace_back();
    for (char c : piece.bytes) words.back().push_back(ids[std::string(1, c)]);
  }
  while (result.tokens.size() < tokens) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>
        counts;  // ascending pairs: the first maximum is the smallest
    for (std::size_t w = 0; w < words.size(); ++w) {
      for (std::size_t i = 0; i + 1 < words[w].size(); ++i) counts[{words[w][i], words[w][i + 1]}] += pieces[w].count;
    }
    auto best = counts.end();
    for (auto c = counts.begin(); c != counts.end(); ++c) {
      if (c->second >= 2 && (best == counts.end() || c->second > best->second)) best = c;
    }
    if (best == counts.end()) break;
    const auto [left, right] = best->first;
    const std::string bytes = result.tokens[left] + result.tokens[right];
    const auto [at, fresh] = ids.emplace(bytes, static_cast<std::int32_t>(result.tokens.size()));
    if (fresh) result.tokens.push_back(bytes);
    result.merges.emplace_back(left, right);
    for (auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] == left && word[i + 1] == right)
          word[i] = at->second, word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return result;
}

TEST(BpeTrain, LearnsWhatTheDefinitionSays) {
  const std::vector<CountedPiece> pieces{{"aaaa", 3}, {"abab", 5},    {"abcabc", 4}, {"bcab", 2},
                                         {"cabc", 6}, {"aab", 4},     {"  aa", 2},   {"zzzzzzz", 2},
                                         {"q", 100},  {"xyxyxyx", 3}, {"ccab", 5},   {"\xC3\xA9\xC3\xA9", 2}};
  for (const std::size_t tokens : {256u, 257u, 262u, 270u, 280u, 1000u}) {
    const LearnedBpe fast = learn_bpe(pieces, tokens, {}), plain = learn_plainly(pieces, tokens);
    EXPECT_EQ(fast.tokens, plain.tokens) << tokens;
    EXPECT_EQ(fast.merges, plain.merges) << tokens;
  }
}

TEST(TokenizerTrain, ResultLoadsAndRoundTrips) {
  const std::string text = sample_text(500);
  for (const char* pattern : {"gpt2", "llama3", "qwen"}) {
    TokenizerTraining training;
    training.vocab_size = 300;
    training.pattern = pattern;
    training.special = {"<|endoftext|>", "<|pad|>"};
    const Tokenizer t = Tokenizer::parse(train_tokenizer({text}, training), pattern);
    EXPECT_EQ(t.vocab_size(), 300);
    EXPECT_EQ(t.id_of("<|endoftext|>"), 298);
    EXPECT_EQ(t.end_of_document(), 298);
    EXPECT_EQ(t.id_of("<|pad|>"), 299);
    EXPECT_EQ(t.id_of("!"), 0);
    const auto ids = t.encode(text);
    EXPECT_LT(ids.size() * 3, text.size());
    EXPECT_EQ(t.decode(ids.data(), ids.size(), false), text);
  }
}

TEST(TokenizerTrain, DoesNotDependOnThreadsOrCuts) {
  const std::string text = sample_text(60'000);  // about 3 MB: several units of work
  TokenizerTraining training;
  training.vocab_size = 600;
  training.threads = 1;
  const std::string one = train_tokenizer({text}, training);
  training.threads = 4;
  double last = 0;
  training.progress = [&](double done) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done;
  };
  EXPECT_EQ(train_tokenizer({text}, training), one);
  EXPECT_EQ(last, 1);
}

TEST(TokenizerTrain, SpecialTokensAreNotLearned) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ab<|endoftext|>";
  TokenizerTraining training;
  training.vocab_size = 300;
  const Tokenizer t = Tokenizer::parse(train_tokenizer({text}, training), "t");
  EXPECT_EQ(t.vocab_size(), 258);  // 256 bytes, "ab", the special token: no pair occurs twice any more
  EXPECT_EQ(t.encode("ab<|endoftext|>"), (std::vector<std::int32_t>{256, 257}));
}

TEST(TokenizerTrain, OddTexts) {
  TokenizerTraining training;
  training.vocab_size = 1000;
  EXPECT_EQ(Tokenizer::parse(train_tokenizer({}, training), "t").vocab_size(), 257);
  EXPECT_EQ(Tokenizer::parse(train_tokenizer({"", "a"}, training), "t").vocab_size(), 257);
  const Tokenizer bad = Tokenizer::parse(train_tokenizer({"\xFF\xFF\xFF\xFF"}, training), "t");  // learned as U+FFFD
  EXPECT_EQ(bad.encode("\xFF").size(), 1u);
  const Tokenizer run = Tokenizer::parse(train_tokenizer({std::string(1'000'000, ' ')}, training), "t");
  EXPECT_GT(run.vocab_size(), 257);
}

TEST(TokenizerTrain, Refused) {
  const auto refused = [](auto change, std::initializer_list<std::string> said) {
    TokenizerTraining training;
    training.vocab_size = 300;
    change(training);
    expect_error(ExitCode::usage, said, [&] { train_tokenizer({"abababab"}, training); });
  };
  refused([](auto& t) { t.vocab_size = 256; }, {"256", "257"});
  refused([](auto& t) { t.pattern = "gpt5"; }, {"gpt5", "llama3"});
  refused([](auto& t) { t.special = {""}; }, {"special"});
  refused([](auto& t) { t.special = {"x", "x"}; }, {"special"});
  refused([](auto& t) { t.special = {"a"}; }, {"\"a\"", "also a token"});
}

}  // namespace
}  // namespace sestina

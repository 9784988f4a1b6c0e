// Makes tokenizer.json of documents: pieces are counted on all threads, merges learned from the counts.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/bpe_train.hpp"
#include "io/tokenizer/pretokenize.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kTrainCutBytes = 1U << 20;  // unit of work
constexpr std::size_t kLongestPiece = 4096;  // a longer piece counts as several: it costs its length at every merge
constexpr double kCountingShare = 0.3;       // counting's share of the progress

using Counts = std::unordered_map<std::string, std::int64_t>;

std::vector<AddedToken> special_tokens(const TokenizerTraining& training) {
  std::vector<AddedToken> tokens;
  for (const std::string& content : training.special) {
    AddedToken token;
    token.content = content;
    token.special = true;
    tokens.push_back(token);
  }
  return tokens;
}

class Counter {
 public:
  explicit Counter(const TokenizerTraining& training)
      : nfc_(training.pattern == "qwen"), special_(special_tokens(training)), pattern_(pre_tokenizer(training)) {}

  void count(std::string_view utf8, Pattern::Match& match, Counts& counts) const {
    std::string repaired, composed, key;
    if (!is_valid_utf8(utf8)) utf8 = repaired = repair_utf8(utf8);
    std::vector<AddedSplit> splits;
    special_.split(utf8, splits);
    for (const AddedSplit& split : splits) {
      if (split.id >= 0) continue;
      std::string_view text = split.text;
      if (nfc_) text = composed = sestina::nfc(text);
      pattern_.split(text, match, [&](std::string_view piece) {
        for (; !piece.empty(); piece.remove_prefix(std::min(piece.size(), kLongestPiece))) {
          key.assign(piece.substr(0, kLongestPiece));
          ++counts[key];
        }
      });
    }
  }

 private:
  static PreTokenizer pre_tokenizer(const TokenizerTraining& training) {
    std::vector<PreStep> steps;
    steps.push_back(split_step(Pattern::regex(pattern_named(training.pattern), training.pattern)));
    return PreTokenizer(std::move(steps));
  }
  bool nfc_;
  AddedTokens special_;
  PreTokenizer pattern_;
};

struct Worker {
  Pattern::Match match;
  Counts counts;
};

std::vector<std::string_view> cut(const std::vector<std::string_view>& documents, bool cuttable) {
  std::vector<std::string_view> parts;
  for (std::string_view rest : documents) {
    while (!rest.empty()) {
      const std::size_t size = cuttable && rest.size() > kTrainCutBytes ? next_cut(rest, kTrainCutBytes) : rest.size();
      parts.push_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
  }
  return parts;
}

// Returns pieces sorted by their bytes, so that the result does not depend on threads.
std::vector<CountedPiece> count_pieces(const std::vector<std::string_view>& documents,
                                       const TokenizerTraining& training) {
  const Counter counter(training);
  const bool cuttable = std::none_of(training.special.begin(), training.special.end(),
                                     [](const std::string& s) { return s.find('\n') != std::string::npos; });
  const std::vector<std::string_view> parts = cut(documents, cuttable);
  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> idle;
  std::size_t done = 0;
  parallel_chunks(parts.size(), 1, training.threads, [&](std::uint64_t p, std::uint64_t) {
    std::unique_ptr<Worker> worker;
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) worker = std::move(idle.back()), idle.pop_back();
    }
    if (!worker) worker = std::make_unique<Worker>();
    counter.count(parts[p], worker->match, worker->counts);
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(worker));
    if (training.progress)
      training.progress(kCountingShare * static_cast<double>(++done) / static_cast<double>(parts.size()));
  });
  Counts total;
  for (const auto& worker : idle) {
    if (total.empty()) {
      std::swap(total, worker->counts);
    } else {
      for (const auto& [piece, count] : worker->counts) total[piece] += count;
    }
  }

  std::vector<CountedPiece> pieces;
  pieces.reserve(total.size());
  for (auto& [piece, count] : total) pieces.push_back({piece, count});
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return pieces;
}

ordered_json pre_tokenizer_json(const std::string& pattern) {
  const bool own = pattern == "gpt2";  // ByteLevel has this pattern itself
  const ordered_json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", own}, {"use_regex", own}};
  if (own) return byte_level;
  const ordered_json split{{"type", "Split"},
                           {"pattern", {{"Regex", std::string(pattern_named(pattern))}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level})}};
}

ordered_json model_json(const LearnedBpe& learned) {
  std::vector<std::string> symbols;
  ordered_json::object_t vocab;
  for (const std::string& token : learned.tokens) symbols.push_back(bytes_to_symbols(token));
  for (std::size_t id = 0; id < symbols.size(); ++id)
    vocab.push_back({symbols[id], id});  // emplace would search linearly
  ordered_json merges = ordered_json::array();
  for (const auto& [left, right] : learned.merges) merges.push_back(symbols[left] + " " + symbols[right]);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string train_tokenizer(const std::vector<std::string_view>& documents, const TokenizerTraining& training) {
  const auto specials = static_cast<std::int64_t>(training.special.size());
  if (training.vocab_size < 256 + specials || training.vocab_size > (1 << 24)) {
    fail(ExitCode::usage, "tokenizer vocab_size {}: {} (bytes and special tokens) to {} are allowed",
         training.vocab_size, 256 + specials, 1 << 24);
  }
  for (const std::string& special : training.special) {
    const bool unique = std::count(training.special.begin(), training.special.end(), special) == 1;
    if (special.empty() || !is_valid_utf8(special) || !unique) {
      fail(ExitCode::usage, "special token \"{}\": each must be valid UTF-8, not empty and unique", special);
    }
  }
  const std::vector<CountedPiece> pieces = count_pieces(documents, training);
  const auto progress = [&](double done) {
    if (training.progress) training.progress(kCountingShare + (1 - kCountingShare) * done);
  };
  const LearnedBpe learned = learn_bpe(pieces, static_cast<std::size_t>(training.vocab_size - specials), progress);

  for (const std::string& token : learned.tokens) {
    if (std::count(training.special.begin(), training.special.end(), bytes_to_symbols(token)) > 0) {
      fail(ExitCode::usage, "special token \"{}\" is also a token of the text", bytes_to_symbols(token));
    }
  }
  ordered_json added = ordered_json::array();
  for (std::size_t i = 0; i < training.special.size(); ++i) {
    added.push_back({{"id", learned.tokens.size() + i},
                     {"content", training.special[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const ordered_json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const ordered_json root{
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", std::move(added)},
      {"normalizer", training.pattern == "qwen" ? ordered_json{{"type", "NFC"}} : ordered_json(nullptr)},
      {"pre_tokenizer", pre_tokenizer_json(training.pattern)},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", model_json(learned)}};
  if (training.progress) training.progress(1);
  return root.dump(1);
}

}  // namespace sestina

// The counts of all pairs are kept up to date from merge to merge; a queue finds the largest. Counts that fall leave
// stale entries in the queue, which are put right when they surface.
#include "io/tokenizer/bpe_train.hpp"

#include <algorithm>
#include <queue>
#include <string_view>
#include <unordered_map>

#include "io/tokenizer/bpe_model.hpp"

namespace sestina {
namespace {

using Pair = std::uint64_t;  // left id << 32 | right id
Pair pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<Pair>(left) << 32 | static_cast<std::uint32_t>(right);
}

struct PairHash {
  std::size_t operator()(Pair p) const { return p * 0x9E3779B97F4A7C15ULL ^ p >> 29; }
};

struct Occurrences {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // words where the pair may occur; a word can be listed twice or in vain
};

struct QueuedPair {
  std::int64_t count;
  Pair pair;
  bool operator<(const QueuedPair& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  explicit Learner(const std::vector<CountedPiece>& pieces) : pieces_(pieces), words_(pieces.size()) {
    std::int32_t id_of_byte[256];
    for (unsigned char byte : bytes_by_symbol()) {
      id_of_byte[byte] = static_cast<std::int32_t>(result_.tokens.size());
      add_token(std::string(1, static_cast<char>(byte)));
    }
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      for (unsigned char byte : pieces[w].bytes) words_[w].push_back(id_of_byte[byte]);
      for (std::size_t i = 0; i + 1 < words_[w].size(); ++i) raise(pair_of(words_[w][i], words_[w][i + 1]), w);
    }
    for (const auto& [pair, occurrences] : pairs_) queue_.push({occurrences.count, pair});
  }

  LearnedBpe run(std::size_t tokens, const std::function<void(double)>& progress) {
    while (result_.tokens.size() < tokens && !queue_.empty()) {
      const QueuedPair top = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_[top.pair].count;
      if (count < 2) continue;
      if (count < top.count) {
        queue_.push({count, top.pair});
        continue;
      }
      merge(top.pair);
      if (progress && result_.merges.size() % 64 == 0) {
        progress(static_cast<double>(result_.tokens.size()) / static_cast<double>(tokens));
      }
    }
    return std::move(result_);
  }

 private:
  std::int32_t add_token(const std::string& bytes) {
    const auto [at, fresh] = ids_.emplace(bytes, static_cast<std::int32_t>(result_.tokens.size()));
    if (fresh) result_.tokens.push_back(bytes);
    return at->second;
  }

  void raise(Pair pair, std::uint32_t word) {
    Occurrences& o = pairs_[pair];
    o.count += pieces_[word].count;
    if (o.words.empty() || o.words.back() != word) o.words.push_back(word);
  }

  void merge(Pair pair) {
    const auto left = static_cast<std::int32_t>(pair >> 32), right = static_cast<std::int32_t>(pair & UINT32_MAX);
    const std::int32_t whole = add_token(result_.tokens[left] + result_.tokens[right]);
    result_.merges.emplace_back(left, right);
    const std::vector<std::uint32_t> words = std::move(pairs_[pair].words);
    pairs_[pair].words.clear();
    raised_.clear();
    for (std::uint32_t w : words) merge_in(w, left, right, whole);
    pairs_[pair].count = 0;
    std::sort(raised_.begin(), raised_.end());
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (Pair p : raised_) queue_.push({pairs_[p].count, p});
  }

  // Counts of the word's pairs go out, the pair is merged from left to right, the new counts go in: only where they
  // change.
  void merge_in(std::uint32_t w, std::int32_t left, std::int32_t right, std::int32_t whole) {
    std::vector<std::int32_t>& word = words_[w];
    const std::int64_t count = pieces_[w].count;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < word.size();) {
      if (i + 1 >= word.size() || word[i] != left || word[i + 1] != right) {
        word[kept++] = word[i++];
        continue;
      }
      if (kept > 0) {
        pairs_[pair_of(word[kept - 1], left)].count -= count;
        raise_new(pair_of(word[kept - 1], whole), w);
      }
      if (i + 2 < word.size()) {
        pairs_[pair_of(right, word[i + 2])].count -= count;
        raise_new(pair_of(whole, word[i + 2]), w);
      }
      word[kept++] = whole;
      i += 2;
    }
    word.resize(kept);
  }

  void raise_new(Pair pair, std::uint32_t w) {
    raise(pair, w);
    raised_.push_back(pair);
  }

  const std::vector<CountedPiece>& pieces_;
  std::vector<std::vector<std::int32_t>> words_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::priority_queue<QueuedPair> queue_;
  std::vector<Pair> raised_;
  LearnedBpe result_;
};

}  // namespace

LearnedBpe learn_bpe(const std::vector<CountedPiece>& pieces, std::size_t tokens,
                     const std::function<void(double)>& progress) {
  return Learner(pieces).run(tokens, progress);
}

}  // namespace sestina

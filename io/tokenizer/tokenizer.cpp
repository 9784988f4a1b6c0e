#include "io/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "io/store/mapped_file.hpp"
#include "io/tokenizer/bpe_bytes.hpp"
#include "io/tokenizer/bpe_cache.hpp"
#include "io/tokenizer/tokenizer_json.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/quiet_threads.hpp"

namespace sestina {
namespace {

constexpr std::size_t kThreadCutBytes = 1U << 18;  // a longer text is cut so that threads can share it

// What a thread needs while it encodes.
struct Scratch {
  Pattern::Match match;
  BpeCache cache;
  std::vector<AddedSplit> splits, normalized_splits;
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerDescription d, const std::string& where);
  void encode(std::string_view utf8, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  std::unique_ptr<Scratch> borrow();
  void give_back(std::unique_ptr<Scratch> scratch);

  bool nfc, cuttable;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens raw, normalized;  // looked for before and after normalization
  std::unordered_map<std::string, std::int64_t> added_ids;
  std::vector<std::string> bytes;  // by id, what decode writes; "" where there is no token
  std::vector<bool> special;       // by id
  std::vector<std::int32_t> prefix;
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;

 private:
  void encode_stretch(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;
};

Tokenizer::State::State(TokenizerDescription d, const std::string& where)
    : nfc(d.nfc),
      cuttable(d.pre_tokenizer.cuttable()),
      pre_tokenizer(std::move(d.pre_tokenizer)),
      model(std::move(d.model), where) {
  std::size_t ids = 0;
  for (const auto& [token, id] : model.vocab()) ids = std::max<std::size_t>(ids, id + 1);
  for (const AddedToken& t : d.added) ids = std::max<std::size_t>(ids, t.id + 1);
  bytes.resize(ids);
  special.resize(ids);
  const auto decoded = [](const std::string& token) { return symbols_to_bytes(token).value_or(token); };
  for (const auto& [token, id] : model.vocab()) bytes[id] = decoded(token);
  std::vector<AddedToken> before, after;
  for (AddedToken& t : d.added) {
    added_ids[t.content] = t.id;
    special[t.id] = t.special;
    // A cut (next_cut) must not fall into a token, nor change what a token sees on its left.
    if (t.content.find('\n') != std::string::npos || t.lstrip || t.single_word) cuttable = false;
    if (t.normalized && nfc) t.content = sestina::nfc(t.content);
    bytes[t.id] = decoded(t.content);
    (t.normalized ? after : before).push_back(std::move(t));
  }
  prefix = std::move(d.prefix);
  raw = AddedTokens(std::move(before));
  normalized = AddedTokens(std::move(after));
}

std::unique_ptr<Scratch> Tokenizer::State::borrow() {
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      auto scratch = std::move(idle.back());
      idle.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::State::give_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(scratch));
}

void Tokenizer::State::encode(std::string_view utf8, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  std::string repaired, composed;
  if (!is_valid_utf8(utf8)) utf8 = repaired = repair_utf8(utf8);
  scratch.splits.clear();
  raw.split(utf8, scratch.splits);
  for (const AddedSplit& split : scratch.splits) {
    if (split.id >= 0) {
      ids.push_back(static_cast<std::int32_t>(split.id));
      continue;
    }
    std::string_view text = split.text;
    if (nfc) text = composed = sestina::nfc(text);
    scratch.normalized_splits.clear();
    normalized.split(text, scratch.normalized_splits);
    for (const AddedSplit& inner : scratch.normalized_splits) {
      if (inner.id >= 0) {
        ids.push_back(static_cast<std::int32_t>(inner.id));
      } else {
        encode_stretch(inner.text, scratch, ids);
      }
    }
  }
}

void Tokenizer::State::encode_stretch(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  pre_tokenizer.split(text, scratch.match, [&](std::string_view piece) {
    if (piece.size() > BpeCache::kLongestPiece) return model.encode(piece, ids);
    const std::uint64_t hash = BpeCache::hash(piece);
    const BpeCache::Ids known = scratch.cache.find(piece, hash);
    if (known.first != nullptr) {
      ids.insert(ids.end(), known.first, known.first + known.count);
      return;
    }
    const std::size_t first = ids.size();
    model.encode(piece, ids);
    scratch.cache.insert(piece, hash, ids.data() + first, ids.size() - first);
  });
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) { return parse(MappedFile(path).view(), path); }

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where) {
  return Tokenizer(std::make_unique<State>(parse_tokenizer_json(json, where), where));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8) const {
  std::vector<std::int32_t> ids;
  auto scratch = state_->borrow();
  state_->encode(utf8, *scratch, ids);
  state_->give_back(std::move(scratch));
  return ids;
}

std::vector<std::vector<std::int32_t>> Tokenizer::encode(const std::vector<std::string_view>& texts,
                                                         int threads) const {
  struct Part {
    std::size_t text;
    std::string_view bytes;
    std::vector<std::int32_t> ids;
  };
  std::vector<Part> parts;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    for (std::string_view rest = texts[t]; !rest.empty();) {
      const std::size_t cut =
          state_->cuttable && rest.size() > kThreadCutBytes ? next_cut(rest, kThreadCutBytes) : rest.size();
      parts.push_back({t, rest.substr(0, cut), {}});
      rest.remove_prefix(cut);
    }
  }
  parallel_chunks(parts.size(), 1, threads, [&](std::uint64_t p, std::uint64_t) {
    auto scratch = state_->borrow();
    state_->encode(parts[p].bytes, *scratch, parts[p].ids);
    state_->give_back(std::move(scratch));
  });

  std::vector<std::vector<std::int32_t>> result(texts.size());
  for (Part& part : parts) {
    auto& ids = result[part.text];
    if (ids.empty()) {
      ids = std::move(part.ids);
    } else {
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
      std::vector<std::int32_t>().swap(part.ids);
    }
  }
  return result;
}

std::string Tokenizer::decode(const std::int32_t* ids, std::size_t count, bool skip_special) const {
  const std::string bytes = decode_bytes(ids, count, skip_special);
  return is_valid_utf8(bytes) ? bytes : repair_utf8(bytes);
}

std::string Tokenizer::decode_bytes(const std::int32_t* ids, std::size_t count, bool skip_special) const {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) continue;
    if (!(skip_special && state_->special[ids[i]])) bytes += state_->bytes[ids[i]];
  }
  return bytes;
}

bool Tokenizer::has(std::int64_t id) const {
  return id >= 0 && id < vocab_size() && !state_->bytes[static_cast<std::size_t>(id)].empty();
}

const std::vector<std::int32_t>& Tokenizer::prefix() const { return state_->prefix; }

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(state_->bytes.size()); }

std::int64_t Tokenizer::id_of(std::string_view token) const {
  const auto added = state_->added_ids.find(std::string(token));
  return added != state_->added_ids.end() ? added->second : state_->model.id_of(token);
}

std::int64_t Tokenizer::end_of_document() const {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "<|im_end|>",
                           "<|eot_id|>", "<|eos|>", "[EOS]", "<EOS>"}) {
    const std::int64_t id = id_of(name);
    if (id >= 0) return id;
  }
  return -1;
}

}  // namespace sestina

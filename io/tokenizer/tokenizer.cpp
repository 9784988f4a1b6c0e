#include "io/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "io/store/input_file.hpp"
#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/pretokenize.hpp"
#include "io/tokenizer/tokenizer_json.hpp"
#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

// The memory that a thread needs while it encodes.
struct Scratch {
  Pattern::Match match;
  BpeCache cache;
  std::vector<AddedSplit> splits;
};

// The part that one thread encodes at a time: a text, or some sections of a long one.
struct EncodePart {
  std::string_view text;
  std::vector<TextSection> sections;
  bool last = true;  // the part is the last of its text
  std::vector<std::int32_t> ids;
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerDescription d, const std::string& where);
  void encode(std::string_view utf8, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode(const TextSection& section, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode(std::vector<EncodePart>& parts, int threads, const IdSink& sink);
  SectionReader sections(std::string_view utf8, std::size_t longest) const {
    return SectionReader({raw, normalized, nfc, cuttable}, utf8, longest);
  }
  std::unique_ptr<Scratch> borrow();
  void give_back(std::unique_ptr<Scratch> scratch);

  bool nfc, cuttable;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens raw, normalized;  // tokens looked for before and after normalization
  std::unordered_map<std::string, std::int64_t> added_ids;
  std::vector<std::string> bytes;  // by id, the bytes that decode writes; "" where there is no token
  std::vector<bool> special;       // by id
  std::vector<std::int32_t> prefix;
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;

 private:
  void encode_stretch(std::string_view text, bool begins, Scratch& scratch, std::vector<std::int32_t>& ids) const;
};

Tokenizer::State::State(TokenizerDescription d, const std::string& where)
    : nfc(d.nfc), cuttable(false), pre_tokenizer(std::move(d.pre_tokenizer)), model(std::move(d.model), where) {
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
    if (t.normalized && nfc) t.content = sestina::nfc(t.content);
    bytes[t.id] = decoded(t.content);
    (t.normalized ? after : before).push_back(std::move(t));
  }
  cuttable = sections_cuttable(nfc, after, pre_tokenizer.cuttable(), pre_tokenizer.prefix_space());
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
  std::string repaired;
  if (!is_valid_utf8(utf8)) utf8 = repaired = repair_utf8(utf8);
  SectionReader reader = sections(utf8, std::string_view::npos);
  for (TextSection section; reader.next(section);) encode(section, scratch, ids);
}

void Tokenizer::State::encode(const TextSection& section, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (section.id >= 0) return ids.push_back(static_cast<std::int32_t>(section.id));
  if (!nfc) return encode_stretch(section.text, section.begins, scratch, ids);
  const std::string composed = sestina::nfc(section.text);
  scratch.splits.clear();
  normalized.split(composed, scratch.splits);
  bool begins = section.begins;
  for (const AddedSplit& split : scratch.splits) {
    if (split.id >= 0) {
      ids.push_back(static_cast<std::int32_t>(split.id));
    } else {
      encode_stretch(split.text, begins, scratch, ids);
    }
    begins = true;
  }
}

void Tokenizer::State::encode(std::vector<EncodePart>& parts, int threads, const IdSink& sink) {
  parallel_chunks(parts.size(), 1, threads, [&](std::uint64_t p, std::uint64_t) {
    auto scratch = borrow();
    if (parts[p].sections.empty()) encode(parts[p].text, *scratch, parts[p].ids);
    for (const TextSection& section : parts[p].sections) encode(section, *scratch, parts[p].ids);
    give_back(std::move(scratch));
  });
  for (EncodePart& part : parts) {
    sink(part.ids, part.last);
    std::vector<std::int32_t>().swap(part.ids);
  }
  parts.clear();
}

void Tokenizer::State::encode_stretch(std::string_view text, bool begins, Scratch& scratch,
                                      std::vector<std::int32_t>& ids) const {
  const auto encode_piece = [&](std::string_view piece) {
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
  };
  pre_tokenizer.split(text, scratch.match, encode_piece, begins);
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

// Gathers parts and encodes them when there is enough of them.
class Tokenizer::Batch {
 public:
  Batch(State& state, int threads, const IdSink& sink, const EncodeSizes& sizes)
      : state_(state), threads_(threads), sink_(sink), sizes_(sizes) {}

  void add(std::string_view text) {
    if (text.size() > 2 * sizes_.part) return add_long(text);
    add(EncodePart{text, {}, true, {}}, text.size());
  }
  void flush() {
    if (parts_.empty()) return;
    if (sizes_.poll) sizes_.poll();
    state_.encode(parts_, threads_, sink_);
    bytes_ = 0;
  }

 private:
  void add(EncodePart part, std::size_t bytes) {
    parts_.push_back(std::move(part));
    bytes_ += bytes + sizeof(EncodePart);
    if (bytes_ >= sizes_.batch) flush();
  }

  void add_long(std::string_view text) {
    std::string repaired;
    if (!is_valid_utf8(text)) text = repaired = repair_utf8(text);
    SectionReader reader = state_.sections(text, sizes_.part);
    std::size_t bytes = 0;
    EncodePart part{{}, {}, false, {}};
    for (TextSection section; reader.next(section);) {
      if (bytes >= sizes_.part) add(std::exchange(part, {{}, {}, false, {}}), std::exchange(bytes, 0));
      part.sections.push_back(section);
      bytes += section.text.size() + sizeof section;
    }
    part.last = true;
    add(std::move(part), bytes);
    if (!repaired.empty()) flush();
  }

  State& state_;
  int threads_;
  const IdSink& sink_;
  const EncodeSizes& sizes_;
  std::vector<EncodePart> parts_;
  std::size_t bytes_ = 0;
};

void Tokenizer::encode(const std::vector<std::string_view>& texts, int threads, const IdSink& sink,
                       const EncodeSizes& sizes) const {
  Batch batch(*state_, threads, sink, sizes);
  for (const std::string_view text : texts) batch.add(text);
  batch.flush();
}

std::vector<std::vector<std::int32_t>> Tokenizer::encode(const std::vector<std::string_view>& texts,
                                                         int threads) const {
  std::vector<std::vector<std::int32_t>> result;
  bool last = true;
  const auto sink = [&](const std::vector<std::int32_t>& ids, bool ends) {
    if (last) result.emplace_back();
    result.back().insert(result.back().end(), ids.begin(), ids.end());
    last = ends;
  };
  encode(texts, threads, sink, {});
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

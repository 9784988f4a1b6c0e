#include "io/tokenizer/bpe_model.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> symbol;
  std::array<int, 0x100 + 68> byte;  // -1: not in the alphabet
};

constexpr int kNone = -1;

const Alphabet& alphabet() {
  static const Alphabet instance = [] {
    Alphabet a;
    a.byte.fill(kNone);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      a.symbol[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      a.byte[a.symbol[b]] = b;
    }
    return a;
  }();
  return instance;
}

}  // namespace

char32_t byte_symbol(unsigned char byte) { return alphabet().symbol[byte]; }

std::vector<unsigned char> bytes_by_symbol() {
  std::vector<unsigned char> bytes(256);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  std::sort(bytes.begin(), bytes.end(), [](auto a, auto b) { return byte_symbol(a) < byte_symbol(b); });
  return bytes;
}

std::string bytes_to_symbols(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (unsigned char byte : bytes) {
    const char32_t c = byte_symbol(byte);  // at most U+0143: one or two bytes of UTF-8
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | (c >> 6));
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> symbols_to_bytes(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const auto lead = static_cast<unsigned char>(token[i]);
    char32_t c = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xDF || i + 1 >= token.size()) return std::nullopt;
      c = (lead & 0x1FU) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3FU);
    }
    if (c >= alphabet().byte.size() || alphabet().byte[c] == kNone) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[c]);
    i += lead < 0x80 ? 1 : 2;
  }
  return bytes;
}

namespace {

constexpr std::size_t kShort = 96;  // pieces up to here are merged by scanning, longer ones through a heap

bool is_one_character(std::string_view text) {
  return text.size() > 1 && std::all_of(text.begin(), text.end(), [&](char c) { return c == text[0]; });
}

}  // namespace

MergeTable::MergeTable(std::size_t merges) : slots_(std::bit_ceil(2 * merges + 2)), mask_(slots_.size() - 1) {}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t at = slot(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
  slots_[at] = {key, merge};
}

BpeModel::BpeModel(BpeDescription description, const std::string& where)
    : vocab_(std::move(description.vocab)),
      merges_(description.merges.size()),
      ignore_merges_(description.ignore_merges),
      fuse_unknown_(description.fuse_unknown) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_id_[byte] = static_cast<std::int32_t>(id_of(bytes_to_symbols({&c, 1})));
  }
  if (!description.unknown.empty()) {
    unknown_ = static_cast<std::int32_t>(id_of(description.unknown));
    if (unknown_ < 0)
      fail(ExitCode::bad_data, "{}: unk_token \"{}\" is not in the vocabulary", where, description.unknown);
  }
  read_merges(description, where);
  mark_uniform(description);
}

void BpeModel::read_merges(const BpeDescription& description, const std::string& where) {
  for (std::size_t rank = 0; rank < description.merges.size(); ++rank) {
    const auto& [left, right] = description.merges[rank];
    const std::int64_t a = id_of(left), b = id_of(right), whole = id_of(left + right);
    if (a < 0 || b < 0 || whole < 0) {
      const std::string missing = a < 0 ? left : b < 0 ? right : left + right;
      fail(ExitCode::bad_data, "{}: merge {} (\"{}\", \"{}\"): \"{}\" is not in the vocabulary", where, rank, left,
           right, missing);
    }
    merges_.set(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b),
                {static_cast<std::uint32_t>(rank), static_cast<std::int32_t>(whole)});
  }
}

// merge_uniform applies all merges of one pair at once; that equals one at a time when no merge of a token of one
// repeated byte comes before a merge that forms the token.
void BpeModel::mark_uniform(const BpeDescription& description) {
  std::fill(std::begin(uniform_ordered_), std::end(uniform_ordered_), true);
  std::unordered_map<std::string, std::size_t> last_formed;
  std::vector<std::pair<std::string, std::size_t>> uniform;  // bytes of the merge, rank
  for (std::size_t rank = 0; rank < description.merges.size(); ++rank) {
    const auto bytes = symbols_to_bytes(description.merges[rank].first + description.merges[rank].second);
    if (!bytes || !is_one_character(*bytes)) continue;
    last_formed[*bytes] = rank;
    uniform.emplace_back(*bytes, rank);
  }
  for (const auto& [bytes, rank] : uniform) {
    const std::size_t left = symbols_to_bytes(description.merges[rank].first)->size();
    for (std::size_t length : {left, bytes.size() - left}) {
      const auto formed = last_formed.find(bytes.substr(0, length));
      if (formed != last_formed.end() && formed->second >= rank)
        uniform_ordered_[static_cast<unsigned char>(bytes[0])] = false;
    }
  }
}

std::int64_t BpeModel::id_of(std::string_view token) const {
  const auto found = vocab_.find(std::string(token));
  return found == vocab_.end() ? -1 : found->second;
}

void BpeModel::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    const std::int64_t whole = id_of(bytes_to_symbols(piece));
    if (whole >= 0) return ids.push_back(static_cast<std::int32_t>(whole));
  }
  if (piece.size() > kShort && merge_uniform(piece, ids)) return;
  const std::size_t first = ids.size();
  initial(piece, ids);
  if (ids.size() - first <= kShort) {
    merge_short(ids, first);
  } else {
    merge_long(ids, first);
  }
}

void BpeModel::initial(std::string_view piece, std::vector<std::int32_t>& ids) const {
  bool after_unknown = false;
  for (unsigned char byte : piece) {
    const bool unknown = byte_id_[byte] < 0;
    const std::int32_t id = unknown ? unknown_ : byte_id_[byte];
    if (id >= 0 && !(unknown && after_unknown && fuse_unknown_)) ids.push_back(id);
    after_unknown = unknown;
  }
}

void BpeModel::merge_short(std::vector<std::int32_t>& ids, std::size_t first) const {
  std::int32_t* id = ids.data() + first;
  std::size_t n = ids.size() - first;
  MergeTable::Merge merge[kShort];  // the merge of id[i] and id[i + 1]
  for (std::size_t i = 0; i + 1 < n; ++i) merge[i] = merges_.find(id[i], id[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (merge[i].rank < merge[best].rank) best = i;
    }
    if (merge[best].rank == MergeTable::kNoRank) break;
    id[best] = merge[best].id;
    --n;
    std::copy(id + best + 2, id + n + 1, id + best + 1);
    std::copy(merge + best + 1, merge + n, merge + best);
    if (best > 0) merge[best - 1] = merges_.find(id[best - 1], id[best]);
    if (best + 1 < n) merge[best] = merges_.find(id[best], id[best + 1]);
  }
  ids.resize(first + n);
}

}  // namespace sestina

// Byte-pair encoding: the byte alphabet, the encoding of one piece of text (the model of tokenizer.json), and pieces
// already encoded. No Kokkos.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sestina {

// The byte alphabet of byte-level BPE: every byte has a printable character, so that tokens are text in tokenizer.json.
// 0x21-7E, A1-AC and AE-FF stand for themselves, the other 68 bytes for U+0100 upward (GPT-2's table).
char32_t byte_symbol(unsigned char byte);              // the character of a byte
std::vector<unsigned char> bytes_by_symbol();          // all 256 bytes in ascending order of their characters
std::string bytes_to_symbols(std::string_view bytes);  // UTF-8 text of the characters
std::optional<std::string> symbols_to_bytes(std::string_view token);  // none when a character is outside the alphabet

// Byte-pair encoding of one piece of text: the model of tokenizer.json.
struct BpeDescription {
  std::unordered_map<std::string, std::int32_t> vocab;      // token in the byte alphabet -> id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool ignore_merges = false;                               // a piece that is itself a token is taken whole
  std::string unknown;        // token for a byte that is not in the vocabulary, "" = left out
  bool fuse_unknown = false;  // adjacent unknown tokens become one
};

// An open-addressed map from a pair of ids to its merge.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNoRank = UINT32_MAX;

  explicit MergeTable(std::size_t merges = 0);
  void set(std::int32_t left, std::int32_t right, Merge merge);  // replaces
  Merge find(std::int32_t left, std::int32_t right) const {      // rank kNoRank when there is none
    const std::uint64_t key = key_of(left, right);
    for (std::size_t at = slot(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == kEmpty) return {kNoRank, -1};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge{kNoRank, -1};
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15ULL >> 20) & mask_; }
  std::vector<Slot> slots_;
  std::size_t mask_;
};

// Encodes pieces: always merges the pair of lowest rank, and of equal pairs the leftmost (Sennrich et al. 2016, in the
// order of the `tokenizers` package).
class BpeModel {
 public:
  BpeModel(BpeDescription description, const std::string& where);             // Error(bad_data) names `where`
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;  // appends the ids of the piece's bytes
  std::int64_t id_of(std::string_view token) const;                           // token in the byte alphabet; -1 none
  const std::unordered_map<std::string, std::int32_t>& vocab() const { return vocab_; }

 private:
  void read_merges(const BpeDescription& description, const std::string& where);
  void mark_uniform(const BpeDescription& description);
  void initial(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_short(std::vector<std::int32_t>& ids, std::size_t first) const;
  void merge_long(std::vector<std::int32_t>& ids, std::size_t first) const;
  bool merge_uniform(std::string_view piece, std::vector<std::int32_t>& ids) const;

  std::unordered_map<std::string, std::int32_t> vocab_;
  MergeTable merges_;
  std::int32_t byte_id_[256];  // -1: not in the vocabulary
  bool uniform_ordered_[256];  // merges of this byte with itself form longer tokens at higher ranks only
  bool ignore_merges_, fuse_unknown_;
  std::int32_t unknown_ = -1;
};

// A cache of pieces already encoded. One thread uses a cache at a time.

// It is an open-addressed table in bounded memory (about 6 MB); when full it starts over.
class BpeCache {
 public:
  static constexpr std::size_t kLongestPiece = 64;  // longer ones are rarely seen twice

  struct Ids {
    const std::int32_t* first;
    std::size_t count;
  };

  BpeCache() : slots_(kSlots) {}

  static std::uint64_t hash(std::string_view piece) {
    std::uint64_t h = piece.size() * 0x9E3779B97F4A7C15ULL;
    for (std::size_t i = 0; i < piece.size(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, piece.data() + i, piece.size() - i < 8 ? piece.size() - i : 8);
      h = (h ^ word) * 0xFF51AFD7ED558CCDULL;
      h ^= h >> 32;
    }
    return h;
  }

  // Returns the ids of a piece; first is null when the piece is not there.
  Ids find(std::string_view piece, std::uint64_t h) const {
    for (std::size_t at = h & (kSlots - 1); slots_[at].length > 0; at = (at + 1) & (kSlots - 1)) {
      const Slot& s = slots_[at];
      if (s.tag == static_cast<std::uint32_t>(h >> 32) && s.length == piece.size() &&
          std::memcmp(bytes_.data() + s.bytes, piece.data(), piece.size()) == 0) {
        return {ids_.data() + s.ids, s.count};
      }
    }
    return {nullptr, 0};
  }

  void insert(std::string_view piece, std::uint64_t h, const std::int32_t* ids, std::size_t count) {
    if (used_ >= kSlots / 2 || bytes_.size() > kMostBytes) clear();
    std::size_t at = h & (kSlots - 1);
    while (slots_[at].length > 0) at = (at + 1) & (kSlots - 1);
    slots_[at] = {static_cast<std::uint32_t>(h >> 32), static_cast<std::uint32_t>(bytes_.size()),
                  static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(piece.size()),
                  static_cast<std::uint16_t>(count)};
    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    ids_.insert(ids_.end(), ids, ids + count);
    ++used_;
  }

 private:
  static constexpr std::size_t kSlots = 1U << 17;
  static constexpr std::size_t kMostBytes = 1U << 20;
  struct Slot {
    std::uint32_t tag = 0, bytes = 0, ids = 0;
    std::uint16_t length = 0, count = 0;
  };
  void clear() {
    slots_.assign(kSlots, {});
    bytes_.clear();
    ids_.clear();
    used_ = 0;
  }
  std::vector<Slot> slots_;
  std::vector<char> bytes_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
};

}  // namespace sestina

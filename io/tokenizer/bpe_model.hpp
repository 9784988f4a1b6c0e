// Byte-pair encoding of one piece of text: the model of tokenizer.json. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sestina {

struct BpeDescription {
  std::unordered_map<std::string, std::int32_t> vocab;      // token in the byte alphabet (bpe_bytes.hpp) -> id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool ignore_merges = false;                               // a piece that is itself a token is taken whole
  std::string unknown;        // token for a byte that is not in the vocabulary, "" = left out
  bool fuse_unknown = false;  // adjacent ones become one
};

// Open-addressed map from a pair of ids to its merge.
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

// Always merges the pair of lowest rank, of those the leftmost (Sennrich et al. 2016, in the order of the `tokenizers`
// package).
class BpeModel {
 public:
  BpeModel(BpeDescription description, const std::string& where);             // Error(bad_data) names `where`
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;  // appends the ids of the piece's bytes
  std::int64_t id_of(std::string_view token) const;                           // in the byte alphabet; -1 none
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

}  // namespace sestina

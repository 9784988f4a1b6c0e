// Pieces already encoded. One thread uses a cache at a time. No Kokkos.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace sestina {

// Open-addressed table in bounded memory (about 6 MB); when full it starts over.
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

  // first is null when the piece is not there.
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

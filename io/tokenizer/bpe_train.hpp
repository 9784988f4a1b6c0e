// Learns the merges of byte-pair encoding from counted pieces. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sestina {

struct CountedPiece {
  std::string bytes;
  std::int64_t count;
};

struct LearnedBpe {
  std::vector<std::string> tokens;  // bytes of each id; the first 256 in bytes_by_symbol's order
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // by rank
};

// Merges the most frequent pair of adjacent tokens (ties: the smaller pair of ids) until there are `tokens` tokens or
// no pair occurs twice. A merge may form a token that is there already; it then keeps its id. `pieces` come in any
// fixed order.
LearnedBpe learn_bpe(const std::vector<CountedPiece>& pieces, std::size_t tokens,
                     const std::function<void(double)>& progress);

}  // namespace sestina

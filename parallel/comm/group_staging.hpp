// The memory that a tensor-parallel group keeps while it sums, in plain numbers: TensorGroup takes it, plans count it.
// No Kokkos.
#pragma once
#include <cstddef>

namespace sestina {

inline constexpr std::size_t direct_elements = 4096;  // up to here everybody sends everything to everybody: one round

// The first of the n numbers that a rank of the group sums for all.
inline std::size_t first_summed(std::size_t n, int ranks, int rank) {
  return n * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks);
}

// The elements that come to this rank from the others.
inline std::size_t summed_from_others(std::size_t n, int ranks, int rank) {
  const auto others = static_cast<std::size_t>(ranks - 1);
  if (n <= direct_elements) return others * n;
  return others * (first_summed(n, ranks, rank + 1) - first_summed(n, ranks, rank));
}

}  // namespace sestina

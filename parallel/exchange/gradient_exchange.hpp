// Gradients on their way to the ranks that own them, and weights on their way back: the memory for what comes from
// others, by which parallel/stage/owner_exchange.hpp allocates, and what a step sends. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/exchange/traffic.hpp"
#include "parallel/rounds/reduce_rounds.hpp"

namespace sestina {

// The most places in which chunks of buckets that are reduced take turns.
inline constexpr std::size_t most_chunk_places = 3;

// Returns where the ranks of a data-parallel group cut a bucket: at what each owns, or evenly where nobody owns it.
std::vector<std::int64_t> bucket_cuts(const BucketLayout&, int ranks);

// A place of so many elements (16 MiB) costs less than the waits of the additional rounds or chunks that a smaller one
// would need.
inline constexpr std::size_t small_place_elements = std::size_t{4} << 20;

// How the buckets of a stage are reduced, the same on all ranks of the group, and the places for what comes from others
// meanwhile: chunks take turns in them, which together are no larger than the two largest buckets or two small places.
struct BucketReduction {
  std::vector<ReduceRounds> rounds;         // by bucket
  std::size_t places = 0;                   // 0: nothing is reduced
  std::vector<std::size_t> place_elements;  // by rank
  std::size_t bytes(int dp_rank) const {
    return places == 0 ? 0 : places * place_elements[static_cast<std::size_t>(dp_rank)] * sizeof(float);
  }
};
// levels: those of the data-parallel group, for bulk data. device: gradients lie in device memory.
BucketReduction bucket_reduction(const std::vector<BucketLayout>&, const NodeLevels& levels, bool device,
                                 std::size_t small_place = small_place_elements);

// Adds gradients to their owners and weights back, bucket by bucket: in one step, or for each micro-batch and each time
// that a block has its turn (block_turns.hpp).
void add_gradients_and_weights(Traffic&, const Plan&, int stage);

}  // namespace sestina

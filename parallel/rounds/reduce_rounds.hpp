// Pieces of a sum travel to their owners in rounds of a tree over the ranks: the tree of kernels/blas/sums.hpp, so that
// the bits are those of one sum over all ranks, whatever the rounds. After a round each group of 2^level neighbouring
// ranks has one sum of every piece, on a rank of its own; the ranks of a group share the pieces. One round over all
// levels is the direct exchange (ranks - 1 messages), one round a level is recursive halving (as many messages as
// levels). No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/comm/nodes.hpp"

namespace sestina {

// The cost of a link, to choose rounds by: the seconds that a round waits, that each message costs its rank, and that a
// byte takes. A round waits for more than the link: the next one starts when the program next looks after it, at the
// end of a block. packs: pieces that go to one rank in a round are one message; else each is a message of its own,
// because a message of several stretches would be copied together first (device memory).
struct LinkModel {
  double latency = 200e-6, message = 2e-6, byte = 1 / 12.5e9;
  bool packs = true;
};

// levels: for each round the level of the groups that have one sum after it, ascending; the last group holds all ranks.
// chunks: each piece goes in so many parts, one after the other.
struct ReduceRounds {
  std::vector<int> levels;
  int chunks = 1;
};

// Returns the rank that has an owner's sum of group number `group` of 2^level ranks: the owner in its own groups, and
// always a rank that had the sum of a half before.
int holder(int ranks, int owner, int level, int group);

// One round on one rank: it has part `place` of `parts` of the pieces of the owners in `kept`. The sums of the other
// parts for owner kept[i] come from the ranks from[i], in the order of the parts; this rank's sums of other owners'
// pieces go to the rank `to` of their Way.
struct RoundRoute {
  struct Way {
    int owner = 0, to = 0;
  };
  int place = 0, parts = 1;
  std::vector<int> kept;
  std::vector<std::vector<int>> from;
  std::vector<Way> sent;
};
RoundRoute round_route(int ranks, int rank, int level_before, int level);

// Returns the elements that come to each rank in a round, of pieces of such lengths (by owner).
std::vector<std::size_t> round_elements(int level_before, int level, const std::vector<std::size_t>& lengths);

// Returns the fastest rounds by the model for pieces of such lengths, of which no rank has more than `limit` elements
// from others at a time, unless a chunk of one element has. Levels of nodes are kept apart: between two nodes goes one
// sum.
ReduceRounds choose_rounds(const std::vector<std::size_t>& lengths, const NodeLevels&, std::size_t limit,
                           const LinkModel& = {});

// Returns the elements of the longest chunk that come to each rank in all rounds.
std::vector<std::size_t> elements_of_chunk(const ReduceRounds&, const std::vector<std::size_t>& lengths);

}  // namespace sestina

// Matrices, or shares of them, that are updated on another rank than those that compute with them: the rounds in which
// their gradients come and updated weights go back, the places in which rounds take turns, by which
// parallel/stage/update_rounds.hpp allocates, and what a step sends. No Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <map>
#include <vector>

#include "parallel/exchange/traffic.hpp"

namespace sestina {

// The places in which rounds take turns: micro-groups at a home (homed_groups), or shares (matrix_groups.hpp).
inline constexpr std::size_t group_places = 2;
using RoundPlaces = std::array<std::size_t, group_places>;  // elements of each

// Returns the bytes of the places: whole gradients, and rounded weights where these are not the masters themselves.
std::size_t memory_of_places(const RoundPlaces&, StorageWidth);

// Returns the places at a home, each for the largest group that comes there.
RoundPlaces home_places(const StagePlan&, const PlanInput&, int dp_rank, int tp_rank);

// Adds what updates of a data-parallel rank's matrices send: whole gradients to homes, or to all ranks, and the weights
// of homes back.
void add_homes(Traffic&, const StagePlan&, const PlanInput&, int dp_rank);

// The shares of a stage travel in rounds: those of round i are [rounds[i], rounds[i + 1]) of the list. A matrix travels
// in one round; a round is full when one rank would have more than parallel.micro_group_bytes of gradients in it.
std::vector<std::size_t> share_rounds(const StagePlan&, const ParallelOptions&);

// Returns the places on a rank of the stage, each for the largest round that comes there.
RoundPlaces share_places(const StagePlan&, const ParallelOptions&, int rank);

// Returns the bytes in which the groups of a rank, by their size, sum what their matrices need (TensorGroup::reserve).
std::map<int, std::size_t> share_staging(const StagePlan&, const PlanInput&, int rank);

// Returns the bytes that exchanges of shares take on a rank: these places, and this memory of its groups.
std::size_t memory_of_shares(const StagePlan&, const PlanInput&, int rank);

// Adds what updates of shares send: gradients from the ranks that have their sums, and weights back; and as the busiest
// rank takes part in them, the sums of matrices that several ranks update together, and rows of their polynomials.
void add_shares(Traffic&, const StagePlan&, const PlanInput&);

}  // namespace sestina

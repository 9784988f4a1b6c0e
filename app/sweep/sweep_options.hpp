// The section [sweep] of a deck: which values of which keys `sestina sweep` tries. Other verbs leave it out
// (app/start/run_deck.hpp). No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sestina {

class Deck;

// One key of the grid with its values as TOML text, in the order given: at least one, all different.
struct SweepAxis {
  std::string key;  // "schedule.lr"
  std::vector<std::string> values;
};

struct SweepOptions {
  std::vector<SweepAxis> grid;      // by key; at least one
  std::vector<std::int64_t> seeds;  // run.seed of each point, all different; empty: the deck's own
  bool halving = false;             // method = "halving"
  double keep = 0.5;                // halving: share of the points that a rung leaves
  int rungs = 0;                    // halving: 0 = until one point is left
  enum class Metric { automatic, validation, training } metric = Metric::automatic;
  int jobs = 0, threads = 0;  // runs at once, threads of each; 0: from the cores there are

  // Reads [sweep] from a deck that has all layers; errors are collected. The values of the grid, which may be of any
  // type, are read from the layers themselves: the files, in rising precedence, then the overrides. The grid is
  // forgotten in the deck.
  static SweepOptions read(Deck&, const std::vector<std::string>& files, const std::vector<std::string>& overrides);
};

// Returns the grid as a section of a deck.
std::string sweep_grid_text(const std::vector<SweepAxis>&);

}  // namespace sestina

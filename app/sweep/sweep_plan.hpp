// What a sweep will run: its points with their decks, all checked before anything starts, and where each run goes. No
// Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "app/sweep/sweep_options.hpp"
#include "app/sweep/sweep_points.hpp"

namespace sestina {

// The deck of one point as `train -n` resolves it, with the first seed, and what the sweep needs of it.
struct PointDeck {
  std::string resolved;                                                // TOML
  std::int64_t steps = 0;                                              // run.steps
  std::int64_t warmup_steps = 0, schedule_steps = 0, decay_steps = 0;  // as the deck says; 0: by run.steps
  std::int64_t ranks = 1;
  bool evaluates = false;  // it has validation data and looks at them
};

struct Sweep {
  std::string dir;
  DeckArguments deck;  // of every run: the files, and the overrides without [sweep]
  SweepOptions options;
  std::vector<SweepPoint> points;
  std::vector<PointDeck> decks;     // by point
  std::vector<std::int64_t> seeds;  // at least one
  bool validation = false;          // the loss that counts: that of the last evaluation, else of the last tenth
  int jobs = 1, threads = 1;        // runs at once, threads of each rank
  std::string text;                 // sweep.toml: all of this as one deck
  std::size_t count() const { return points.size() * seeds.size(); }
};

// Reads the sweep and checks every point. Error(bad_deck) with all that is wrong.
Sweep plan_sweep(const SweepArguments&);

struct SweepRun {
  std::size_t point = 0;
  std::int64_t seed = 1, steps = 0;
  std::string dir;
  std::vector<std::string> overrides;  // those of the point, the rung and the seed
};

// Returns the runs of these points with all seeds. steps: updates of the rung, 0 = the deck's own; a schedule that the
// deck gives in updates is shortened by the same factor.
std::vector<SweepRun> runs_of(const Sweep&, const std::vector<std::size_t>& points, std::int64_t steps = 0);

// Returns the command that trains a run or goes on with it.
std::vector<std::string> command_of(const Sweep&, const SweepRun&);

// Says what differs between two sweep.toml, a line for each key; "" where they are the same sweep. Keys that change no
// loss do not count.
std::string sweep_difference(const std::string& stored, const std::string& now);

}  // namespace sestina

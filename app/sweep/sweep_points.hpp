// The points of a sweep as plain data: the product of a grid, names of folders, the rungs of successive halving, ranks
// by loss, edges. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/sweep/sweep_options.hpp"
#include "io/report/comparison.hpp"

namespace sestina {

struct SweepPoint {
  std::vector<std::string> values;  // by axis, as TOML
  std::string name;                 // "lr=0.001_kind=muon": of its folders, without the seed
};

// Returns every combination of the values; the last axis changes fastest. Names have the shortest ends of keys that
// tell the axes apart, and values without quotes; characters that a folder's name should not have become "-".
std::vector<SweepPoint> grid_points(const std::vector<SweepAxis>&);

// Returns the number that a TOML value is; nothing for other types.
std::optional<double> toml_number(const std::string& toml);

// Returns the places of losses in rising order; equal ones keep their order, what is not finite comes last.
std::vector<std::size_t> order_by_loss(const std::vector<double>& losses);

// Successive halving (Jamieson and Talwalkar, arXiv 1502.07943): a rung trains what the one before it left, `keep` of
// the points rounded up, with twice as many updates. Each run has a whole learning-rate schedule of its own length, so
// that no loss is one of mid-schedule.
struct SweepRung {
  std::size_t points = 0;
  std::int64_t steps = 0;
};
// Returns the rungs; the last has `steps` updates. rungs: 0 = until one point is left. A rung may come out with 0
// steps, which the caller refuses.
std::vector<SweepRung> halving_rungs(std::size_t points, double keep, int rungs, std::int64_t steps);

// A key whose best value is the smallest or the largest of a grid of numbers, so that a better one may lie beyond.
struct SweepEdge {
  std::string key, value;
  bool above = false;  // extend the grid above the value; else below
};
std::vector<SweepEdge> edges_of(const std::vector<SweepAxis>&, const SweepPoint& best);

}  // namespace sestina

// The speed of the machine under a run: rates of products, of memory and of the link between ranks, measured in about
// two seconds while all ranks work, and compared with the best that the same node has shown (its record) and with the
// median of the ranks. A node that throttles, shares its cores or has lost a memory channel shows here before it holds
// up all others. No Kokkos.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

// A rate is slow below this share of the record of its node, or of the median of the ranks: about what the clocks of a
// cool and a hot processor differ by stays above it.
inline constexpr double slow_share = 0.7;

// What one rank reaches while all work: TFLOP/s of products in bf16 (0: this processor has none) and in fp32, GB/s of a
// triad in memory, GB/s to the next rank (0: one rank).
struct Speed {
  double bf16_tflops = 0, fp32_tflops = 0, memory_gbs = 0, link_gbs = 0;
};
struct Rate {
  const char *key, *what, *unit;
  double Speed::*value;
};
inline constexpr std::array<Rate, 4> rates = {{{"bf16_tflops", "products in bf16", "TFLOP/s", &Speed::bf16_tflops},
                                               {"fp32_tflops", "products in fp32", "TFLOP/s", &Speed::fp32_tflops},
                                               {"memory_gbs", "memory", "GB/s", &Speed::memory_gbs},
                                               {"link_gbs", "link to the next rank", "GB/s", &Speed::link_gbs}}};

// The speed of a rank next to what it is compared with.
struct RankSpeed {
  std::string host;
  Speed now, record;  // record: the best before, 0 where there was none
};

// Returns a line for each rate of each rank that is slow, such as "rank 3 on node17: memory 41 GB/s, 52 % of its record
// of 79 GB/s".
std::vector<std::string> slow_lines(const std::vector<RankSpeed>&);

// Return, and raise to what has been reached now, the record in a file of one node; `set_up` names what it is of
// (space, ranks of the node, threads). A file that is not there, or is none of ours, has no record. raise_record makes
// folders; it returns false where the file cannot be written.
Speed read_record(const std::string& file, const std::string& set_up);
bool raise_record(const std::string& file, const std::string& set_up, const Speed& now);

// Measures all ranks, which have their Kokkos, and raises the records of their nodes. Collective; the result is the
// same on all ranks.
std::vector<RankSpeed> check_speed(RunOptions::Space, Runtime&);

// Does so where run.check_speed asks for it, and returns slow_lines. Error(unavailable) on all ranks where there are
// some and the deck says "stop". The first rank logs the rates of the slowest rank. Collective.
std::vector<std::string> check_speed(const RunOptions&, Runtime&);

}  // namespace sestina

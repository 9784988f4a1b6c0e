// The pace of the ranks: who computes longer than the others, update after update. Its seconds come from the reports
// that ranks send each other anyway. Waits inside passes (tensor parallelism, pipelines) count as computing: there a
// slow rank shows only in its own data-parallel group. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/plan/rank_report.hpp"

namespace sestina {

// Mean seconds of an update.
struct PaceSeconds {
  double compute = 0;   // passes, updates, waits for refreshes
  double exchange = 0;  // sums of gradients, gathers of weights
  double disk = 0;      // waits for samples
};
PaceSeconds pace_of(const PhaseSeconds&);

struct SlowRank {
  int rank = 0;
  std::int64_t updates = 0;
  PaceSeconds own, median;  // median: by part, over all ranks, the lower one of two
};

class RankPace {
 public:
  explicit RankPace(int ranks);
  void add(std::span<const PhaseSeconds> of_ranks);  // those of a finished update, by rank
  // Returns the rank that computed longest since the last call, where that is more than 1.2 times the median, and by so
  // much that it is no accident of the clock: by a quarter of a second in all.
  std::optional<SlowRank> take();

 private:
  double median(double PaceSeconds::*part);
  std::vector<PaceSeconds> sums_;  // by rank, over the updates
  std::vector<double> scratch_;
  std::int64_t updates_ = 0;
};

// Returns "rank 1 computes 1.5 times as long as the median of the ranks: 0.3 s of an update, not 0.2 s, over 10 updates
// (exchange 0.01 s, median 0.1 s; disk 0 s, median 0 s)".
std::string to_text(const SlowRank&);

}  // namespace sestina

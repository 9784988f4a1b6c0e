// Ranks with replicas of the same matrices, and what is the same on all of them.
#pragma once
#include <cstddef>
#include <vector>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {

// The same bytes of every rank, by rank.
inline std::vector<std::vector<std::byte>> of_all_ranks(const std::vector<std::byte>& mine) {
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(world().size()));
  world().all_gather(mine.data(), mine.size(), all.data());
  std::vector<std::vector<std::byte>> ranks;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(world().size()); ++rank)
    ranks.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size()),
                       all.begin() + static_cast<std::ptrdiff_t>((rank + 1) * mine.size()));
  return ranks;
}

inline bool all_equal(const std::vector<std::byte>& mine) {
  const auto ranks = of_all_ranks(mine);
  return std::all_of(ranks.begin(), ranks.end(), [&](const auto& other) { return other == ranks[0]; });
}

inline double summed(double mine) {
  world().all_reduce(&mine, 1, Reduction::sum);
  return mine;
}

inline TrainingCase drifting(const std::string& kind, std::int64_t budget) {
  TrainingCase run = training_case(kind);
  Options& o = run.options;
  o.parallel.dp = world().size();
  o.parallel.node_size = 2;
  o.parallel.bucket_elements = 20000;
  o.parallel.partition = ParallelOptions::Partition::replicated;
  o.optimizer.refresh.asynchronous = true;
  o.optimizer.refresh.coherence_every = budget;
  o.optimizer.matrix->refresh_staleness = 2;
  o.optimizer.matrix->refresh_eager = true;
  return run;
}

inline std::vector<std::byte> bytes_of(const std::vector<float>& x) {
  const auto* data = reinterpret_cast<const std::byte*>(x.data());
  return {data, data + x.size() * sizeof(float)};
}

}  // namespace sestina

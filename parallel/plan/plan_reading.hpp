// Canzona's printed load ratios (Qwen3-32B, dp 32, tp 8, Muon: 3.24 -> 1.43 and 2.46 -> 1.11 over data-parallel ranks,
// 3.24 -> 2.46 and 1.16 over homes) under the one reading in which they come out, and the best plan next to them. The
// reading: tensors fused as Megatron fuses them (o, qkv, fc1, fc2 in module order, reversed), a buffer of matrices
// alone, buckets of 400 M elements, cuts driven by elements, FLOPs 20 max min^2 for the sides (max, min) of the
// tensor-parallel shard; what is said of homes is true of data-parallel rank 0. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/layout/plan.hpp"

namespace sestina {

struct ReadingRow {
  std::string plan;
  double flops = 1, elements = 1;  // largest over mean
};

struct PaperReading {
  std::vector<ReadingRow> dp;              // start-index, balanced, optimal
  double dp_bound = 1;                     // of flops
  std::vector<ReadingRow> homes;           // those of data-parallel rank 0 of balanced: cost order, micro-groups
  std::vector<ReadingRow> all_homes;       // those of all ranks: micro-groups, optimal
  double homes_least = 1, homes_most = 1;  // flops of micro-groups: least and most of any data-parallel rank
  double all_homes_bound = 1;              // of flops
};

PaperReading canzona_reading(const ModelConfig&, int dp, int tp);

}  // namespace sestina

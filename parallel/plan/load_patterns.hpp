// Items of few distinct costs over equal bins, as counts: the tools that plan_assign is made of. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace sestina {

using BinPattern = std::vector<int>;  // how many items of each class

struct ItemClasses {
  std::vector<std::int64_t> size;  // descending, all above zero
  BinPattern count;                // of all bins together
  std::size_t classes() const { return size.size(); }
  std::int64_t load(const BinPattern&) const;
};

using Packing = std::vector<BinPattern>;  // by bin
std::int64_t largest_load(const ItemClasses&, const Packing&);

Packing pack_longest_first(const ItemClasses&, int bins);

// Moves and exchanges of one item against one between the fullest bin and another, while they make the fullest less
// full.
void improve(const ItemClasses&, Packing&);

// How many bins of capacity T the items take, relaxed to parts of patterns (the configuration linear program, by
// column generation).
struct PatternProgram {
  double bound = 0;  // proven: no packing uses fewer bins
  std::vector<BinPattern> patterns;
  std::vector<double> used;  // of each pattern; sums to the optimum, or less than `enough`
};
PatternProgram solve_patterns(const ItemClasses&, std::int64_t capacity, double enough);

// A packing into `bins` bins of this capacity, rounded from the program; empty when none was found.
std::optional<Packing> round_patterns(const ItemClasses&, const PatternProgram&, int bins, std::int64_t capacity);

// The smallest load above `load` that any bin can have.
std::int64_t next_load(const ItemClasses&, std::int64_t load);

}  // namespace sestina

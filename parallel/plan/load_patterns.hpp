// Items of few distinct costs over equal bins, as counts: the tools that plan_assign is made of. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
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

// Loads of numbered bins under questions that a sort cannot answer while they change: the least one, and the first bin
// within a limit. Each takes log(bins).
class LoadTree {
 public:
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();  // the bin does not take part

  explicit LoadTree(std::size_t bins) {
    while (leaves_ < bins) leaves_ *= 2;
    least_.assign(2 * leaves_, none);
  }
  void set(std::size_t bin, std::int64_t load) {
    std::size_t node = leaves_ + bin;
    least_[node] = load;
    for (node /= 2; node > 0; node /= 2) least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
  }
  std::int64_t least() const { return least_[1]; }
  // The lowest bin whose load is no more than `limit`; there must be one.
  std::size_t first_within(std::int64_t limit) const {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (least_[2 * node] <= limit ? 0 : 1);
    return node - leaves_;
  }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> least_;  // of the two below; node 1 is the root
};

}  // namespace sestina

// Ways to give items with costs to bins: the one whose largest load is least, by counts of few distinct costs, and the
// published ones for matrices and data-parallel ranks. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace sestina {

// Items of few distinct costs over equal bins, as counts: the tools that plan_assign is made of.

using BinPattern = std::vector<int>;  // how many items of each class

struct ItemClasses {
  std::vector<std::int64_t> size;  // descending, all above zero
  BinPattern count;                // items of each class in all bins together
  std::size_t classes() const { return size.size(); }
  std::int64_t load(const BinPattern&) const;
};

using Packing = std::vector<BinPattern>;  // by bin
std::int64_t largest_load(const ItemClasses&, const Packing&);

Packing pack_longest_first(const ItemClasses&, int bins);

// Moves one item, or exchanges one against another, between the fullest bin and another bin, while that makes the
// fullest less full.
void improve(const ItemClasses&, Packing&);

// The number of bins of some capacity that the items take, relaxed to parts of patterns (the configuration linear
// program, by column generation).
struct PatternProgram {
  double bound = 0;  // proven: no packing uses fewer bins
  std::vector<BinPattern> patterns;
  std::vector<double> used;  // how often each pattern is used; sums to the optimum, or to less than `enough`
};
PatternProgram solve_patterns(const ItemClasses&, std::int64_t capacity, double enough);

// Returns a packing into `bins` bins of this capacity, rounded from the program; empty when none was found.
std::optional<Packing> round_patterns(const ItemClasses&, const PatternProgram&, int bins, std::int64_t capacity);

// Returns the smallest load above `load` that any bin can have.
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
  // Returns the lowest bin whose load is no more than `limit`; there must be one.
  std::size_t first_within(std::int64_t limit) const {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (least_[2 * node] <= limit ? 0 : 1);
    return node - leaves_;
  }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> least_;  // the lesser of a node's two children; node 1 is the root
};

// Items with costs are spread over bins so that the largest load is least: any item may go to any bin.
struct Assignment {
  std::vector<int> bin;      // by item
  std::int64_t largest = 0;  // load of the fullest bin
  std::int64_t bound = 0;    // proven: no assignment has a smaller largest load
};

// Returns a bound that is proven from the costs alone: the mean, the largest item, and the pigeonhole principle: among
// the j m + 1 largest items some bin of m holds j + 1, so at least the j + 1 smallest of these.
std::int64_t load_bound(const std::vector<std::int64_t>& cost, int bins);

// Gives the longest item first to the least loaded bin (Graham); ties are broken by item, then by bin.
Assignment assign_longest_first(const std::vector<std::int64_t>& cost, int bins);

// Returns the best assignment, or one very near it. Matrices of a transformer have few distinct costs, so a bin is a
// pattern (how many of each cost), and the question whether patterns of load <= T cover all items is nearly a linear
// program: it proves a bound, and its solution rounds to an assignment. Items of one cost go round the bins in the
// order given, so that neighbours, which share a gradient bucket, go to different bins.
Assignment assign_optimal(const std::vector<std::int64_t>& cost, int bins);

// Serves the second key: among assignments whose largest load is `largest`, it seeks one in which the bin with the most
// bytes has few. Items of the fullest bin change places with smaller ones while that helps. bytes: by item.
void even_bytes(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes, int bins, Assignment&);

// Serves the third key: buckets of items are exchanged one by one, and the bin that receives most of a bucket holds up
// the others. Items of one cost and size change places, and others go where there is room, such that no load and no
// bin's bytes exceed the largest that there are. place: the place of each item; `places` places, one after the other,
// make a bin.
void even_buckets(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes,
                  const std::vector<int>& bucket, int bins, int places, std::vector<int>& place);

// The published ways to give whole matrices to data-parallel ranks, on plain numbers: items in the order of the buffer,
// cut into buckets. The best free assignment is plan_assign's.
struct PartitionItem {
  std::int64_t elements = 0;  // place that it takes in the buffer
  std::int64_t cost = 0;
  int block = 0;  // as TensorSpec::block: buckets close where it changes
};

using Buckets = std::vector<std::vector<int>>;  // items, in the order given

// A bucket closes when it has this many elements, or with `at_blocks` at the end of the block that fills it.
Buckets fill_buckets(const std::vector<PartitionItem>&, std::int64_t bucket_elements, bool at_blocks);

// Returns the bucket size where the deck says none: a sixteenth of the whole, so that reduction can start early, but at
// least `ranks` of the largest item: what a rank owns of a bucket is not less than its largest tensor.
std::int64_t usual_bucket(const std::vector<PartitionItem>&, int ranks);

// Returns the owner of each item. Each bucket is cut into equal parts; an item belongs to the rank in whose part it
// starts.
std::vector<int> start_index_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks);

// Canzona's alpha-balanced greedy (its algorithm 1): cuts move to the ends of items, so that each bucket, the heaviest
// first, fills up those who have less than the mean. Keeps the equal cuts unless the largest load falls.
std::vector<int> balanced_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks, double alpha);

// NVIDIA's layer-wise layout: bucket by bucket, longest first to the least loaded rank of those whose share of the
// bucket stays within 1.3 of the mean share. Loads carry over from bucket to bucket.
std::vector<int> layerwise_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks);

// Returns the load of each rank.
std::vector<std::int64_t> loads(const std::vector<PartitionItem>&, const std::vector<int>& owner, int ranks);

}  // namespace sestina

// Spreading items with costs over bins so that the largest load is least: any item may go to any bin. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

namespace sestina {

struct Assignment {
  std::vector<int> bin;      // by item
  std::int64_t largest = 0;  // load of the fullest bin
  std::int64_t bound = 0;    // proven: no assignment has a smaller largest load
};

// Proven from the costs alone: the mean, the largest item, and pigeonhole: among the j m + 1 largest items some bin of
// m holds j + 1, so at least the j + 1 smallest of these.
std::int64_t load_bound(const std::vector<std::int64_t>& cost, int bins);

// Longest first to the least loaded bin (Graham); ties by item, then by bin.
Assignment assign_longest_first(const std::vector<std::int64_t>& cost, int bins);

// The best there is, or very near it. Matrices of a transformer have few distinct costs, so a bin is a pattern (how
// many of each cost), and whether patterns of load <= T cover all items is nearly a linear program: it proves a
// bound, and its solution rounds to an assignment. Items of one cost go round the bins in the order given, so
// that neighbours, which share a gradient bucket, go to different bins.
Assignment assign_optimal(const std::vector<std::int64_t>& cost, int bins);

// The second key: among assignments whose largest load is `largest`, one in which the bin with the most bytes has few.
// Items of the fullest bin change places with smaller ones while that helps. bytes: by item.
void even_bytes(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes, int bins, Assignment&);

// The third: buckets of items are exchanged one by one, and the bin that receives most of a bucket holds up the others.
// Items of one cost and size change places, and others go where there is room, such that no load and no bin's bytes
// exceed the largest that there are. place: of each item; `places` of them, one after the other, are a bin.
void even_buckets(const std::vector<std::int64_t>& cost, const std::vector<std::int64_t>& bytes,
                  const std::vector<int>& bucket, int bins, int places, std::vector<int>& place);

}  // namespace sestina

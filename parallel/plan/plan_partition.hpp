// The published ways to give whole matrices to data-parallel ranks, on plain numbers: items in the order of the buffer,
// cut into buckets. The best free assignment is plan_assign's. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

namespace sestina {

struct PartitionItem {
  std::int64_t elements = 0;  // place that it takes in the buffer
  std::int64_t cost = 0;
  int block = 0;  // as TensorSpec::block: buckets close where it changes
};

using Buckets = std::vector<std::vector<int>>;  // items, in the order given

// A bucket closes when it has this many elements, or with `at_blocks` at the end of the block that fills it.
Buckets fill_buckets(const std::vector<PartitionItem>&, std::int64_t bucket_elements, bool at_blocks);

// Bucket size where the deck says none: a sixteenth of the whole, so that reduction can start early, but at least
// `ranks` of the largest item: what a rank owns of a bucket is not less than its largest tensor.
std::int64_t usual_bucket(const std::vector<PartitionItem>&, int ranks);

// Owners by item. Equal cuts of each bucket; an item belongs to the rank in whose part it starts.
std::vector<int> start_index_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks);

// Canzona's alpha-balanced greedy (its algorithm 1): cuts move to the ends of items, so that each bucket, the heaviest
// first, fills up those who have less than the mean. Keeps the equal cuts unless the largest load falls.
std::vector<int> balanced_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks, double alpha);

// NVIDIA's layer-wise layout: bucket by bucket, longest first to the least loaded rank of those whose share of the
// bucket stays within 1.3 of the mean share. Loads carry over from bucket to bucket.
std::vector<int> layerwise_owners(const std::vector<PartitionItem>&, const Buckets&, int ranks);

// Loads by rank.
std::vector<std::int64_t> loads(const std::vector<PartitionItem>&, const std::vector<int>& owner, int ranks);

}  // namespace sestina

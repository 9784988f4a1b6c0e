#include "parallel/plan/plan_layout.hpp"

#include <algorithm>

namespace sestina {
namespace {

std::int64_t aligned(std::int64_t elements) {
  constexpr auto to = static_cast<std::int64_t>(arena_alignment);
  return (elements + to - 1) / to * to;
}

// Places the specs one after the other. `adjoin`: whether one may follow its neighbour without a gap.
template <class Adjoin>
BucketLayout place(const std::vector<TensorSpec>& local, std::vector<int> specs, Adjoin adjoin) {
  BucketLayout bucket;
  bucket.specs = std::move(specs);
  bucket.block = local[at(bucket.specs.front())].block;
  for (std::size_t i = 0; i < bucket.specs.size(); ++i) {
    const int spec = bucket.specs[i];
    const bool follows = i > 0 && local[at(spec)].follows && bucket.specs[i - 1] == spec - 1;
    if (!follows || !adjoin(bucket.specs[i - 1], spec)) bucket.elements = aligned(bucket.elements);
    bucket.offset.push_back(bucket.elements);
    bucket.elements += local[at(spec)].elements();
    bucket.block = std::min(bucket.block, local[at(spec)].block);
  }
  bucket.elements = aligned(bucket.elements);
  return bucket;
}

// The boundary between chunks of rows nearest to a place in the bucket; after a tensor's last row the next one begins.
std::int64_t nearest_row(const std::vector<TensorSpec>& local, const BucketLayout& bucket, std::int64_t place) {
  const auto next = std::upper_bound(bucket.offset.begin(), bucket.offset.end(), place);
  const auto i = static_cast<std::size_t>(next - bucket.offset.begin()) - 1;
  const TensorSpec& spec = local[at(bucket.specs[i])];
  const std::int64_t rows = chunk_rows(spec), chunk = rows * spec.cols;
  const std::int64_t row = (place - bucket.offset[i] + chunk / 2) / chunk * rows;
  if (row < spec.rows) return bucket.offset[i] + row * spec.cols;
  return next == bucket.offset.end() ? bucket.elements : *next;
}

}  // namespace

std::vector<BucketLayout> matrix_buckets(const std::vector<TensorSpec>& local, const std::vector<int>& owner,
                                         const Buckets& buckets, int dp) {
  std::vector<BucketLayout> layouts;
  for (std::vector<int> specs : buckets) {
    std::stable_sort(specs.begin(), specs.end(), [&](int a, int b) { return owner[at(a)] < owner[at(b)]; });
    BucketLayout bucket = place(local, std::move(specs), [&](int a, int b) { return owner[at(a)] == owner[at(b)]; });
    if (owner[at(bucket.specs.front())] != every_rank) {
      std::size_t i = 0;
      for (int rank = 0; rank <= dp; ++rank) {
        while (i < bucket.specs.size() && owner[at(bucket.specs[i])] < rank) ++i;
        bucket.cut.push_back(i < bucket.specs.size() ? bucket.offset[i] : bucket.elements);
      }
      bucket.cut.front() = 0;
    }
    layouts.push_back(std::move(bucket));
  }
  return layouts;
}

std::vector<BucketLayout> row_buckets(const std::vector<TensorSpec>& local, const Buckets& buckets, int dp) {
  std::vector<BucketLayout> layouts;
  for (const std::vector<int>& specs : buckets) {
    BucketLayout bucket = place(local, specs, [](int, int) { return true; });
    for (std::int64_t rank = 0; rank < dp; ++rank)
      bucket.cut.push_back(nearest_row(local, bucket, bucket.elements / dp * rank + bucket.elements % dp * rank / dp));
    bucket.cut.push_back(bucket.elements);
    layouts.push_back(std::move(bucket));
  }
  return layouts;
}

}  // namespace sestina

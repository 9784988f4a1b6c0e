#include "parallel/gradient_reduce.hpp"

#include <algorithm>

#include "kernels/tree_sum.hpp"

namespace sestina {
namespace {

// Even pieces for a bucket that nobody owns.
std::vector<std::int64_t> even_cuts(std::int64_t elements, int ranks) {
  std::vector<std::int64_t> cut;
  for (int r = 0; r <= ranks; ++r) cut.push_back(elements * r / ranks);
  return cut;
}

std::vector<std::int64_t> cuts_of(const BucketLayout& bucket, int ranks) {
  return bucket.cut.empty() ? even_cuts(bucket.elements, ranks) : bucket.cut;
}

Block floats(float* begin, std::int64_t from, std::int64_t to) {
  return block_of(begin + from, static_cast<std::size_t>(to - from) * sizeof(float));
}

}  // namespace

template <class Exec>
GradientReduce<Exec>::GradientReduce(const Exec& exec, Communicator& dp_group, const GradientBuckets& all,
                                     Vector<float, Exec> gradients, std::vector<PartialGradient<Exec>> partial)
    : exec_(exec), group_(dp_group), partial_(std::move(partial)) {
  if (group_.size() == 1) return;
  std::vector<std::size_t> order(all.buckets.size());
  for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all.buckets[a].block > all.buckets[b].block; });
  const auto rank = static_cast<std::size_t>(group_.rank());
  std::size_t largest = 0;
  for (const BucketLayout& bucket : all.buckets) {
    const auto cut = cuts_of(bucket, group_.size());
    largest = std::max(largest, static_cast<std::size_t>(cut[rank + 1] - cut[rank]));
  }
  for (auto& slot : received_)
    slot = std::decay_t<decltype(slot)>("sestina::received", largest * static_cast<std::size_t>(group_.size() - 1));
  for (const std::size_t b : order)
    add_bucket(all.buckets[b], gradients.data() + all.begin[b], buckets_.size() % slots);
}

template <class Exec>
void GradientReduce<Exec>::add_bucket(const BucketLayout& layout, float* begin, std::size_t slot) {
  const auto cut = cuts_of(layout, group_.size());
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto mine = static_cast<std::size_t>(cut[rank + 1] - cut[rank]);
  Bucket bucket;
  bucket.block = layout.block;
  bucket.own = {begin + cut[rank], mine};
  bucket.others = {received_[slot].data(), mine * static_cast<std::size_t>(group_.size() - 1)};
  std::vector<Message> sends, receives, out, in;
  std::size_t place = 0;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) continue;
    const auto p = static_cast<std::size_t>(peer);
    sends.push_back({peer, {floats(begin, cut[p], cut[p + 1])}});
    receives.push_back({peer, {block_of(bucket.others.data() + place, mine * sizeof(float))}});
    out.push_back({peer, {block_of(bucket.own.data(), mine * sizeof(float))}});
    in.push_back({peer, {floats(begin, cut[p], cut[p + 1])}});
    place += mine;
  }
  bucket.pieces = group_.make_exchange("gradients", sends, receives);
  if (layout.cut.empty()) bucket.sums = group_.make_exchange("summed gradients", out, in);
  buckets_.push_back(std::move(bucket));
}

template <class Exec>
void GradientReduce<Exec>::start(std::size_t number) {
  if (number >= slots && buckets_[number - slots].state == Bucket::State::pieces_under_way) {
    add_up(buckets_[number - slots]);
    exec_.fence("reduce");  // its turn in the slot ends
  }
  buckets_[number].pieces->start();
  buckets_[number].state = Bucket::State::pieces_under_way;
}

template <class Exec>
void GradientReduce<Exec>::add_up(Bucket& bucket) {
  bucket.pieces->finish();
  tree_sum<Exec, float>(exec_, group_.rank(), group_.size(), bucket.own, bucket.others, bucket.own);
  bucket.state = Bucket::State::summed;
  if (!bucket.sums) return;
  exec_.fence("reduce");
  bucket.sums->start();
}

template <class Exec>
void GradientReduce<Exec>::block_done(int block) {
  for (const PartialGradient<Exec>& partial : partial_)
    if (partial.block == block) partial.group->sum(exec_, partial.gradient);
  bool fenced = false;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].block == block && buckets_[b].state == Bucket::State::idle) {
      if (!fenced) exec_.fence("reduce");
      fenced = true;
      start(b);
    } else if (buckets_[b].state == Bucket::State::pieces_under_way) {
      buckets_[b].pieces->test();
    } else if (buckets_[b].sums) {
      buckets_[b].sums->test();
    }
  }
}

template <class Exec>
void GradientReduce<Exec>::finish() {
  for (Bucket& bucket : buckets_)
    if (bucket.state == Bucket::State::pieces_under_way) add_up(bucket);
  for (Bucket& bucket : buckets_) {
    SESTINA_REQUIRE(bucket.state == Bucket::State::summed, "the bucket of block {} was never started", bucket.block);
    if (bucket.sums) bucket.sums->finish();
    bucket.state = Bucket::State::idle;
  }
}

template <class Exec>
std::int64_t GradientReduce<Exec>::exchanges_per_step() const {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets_) count += bucket.sums ? 2 : 1;
  return count;
}

#define SESTINA_GRADIENT_REDUCE(Exec) template class GradientReduce<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_GRADIENT_REDUCE)

}  // namespace sestina

#include "parallel/step/gradient_reduce.hpp"

#include <algorithm>

#include "kernels/blas/tree_sum.hpp"
#include "parallel/comm/stream_order.hpp"

namespace sestina {
namespace {

Block floats(float* begin, std::int64_t from, std::int64_t to) {
  return block_of(begin + from, static_cast<std::size_t>(to - from) * sizeof(float));
}

}  // namespace

template <class Exec>
GradientReduce<Exec>::GradientReduce(const Exec& exec, Communicator& dp_group, const GradientBuckets& all,
                                     Vector<float, Exec> gradients, std::vector<PartialGradient<Exec>> partial)
    : exec_(exec), group_(dp_group), levels_(bulk_levels(dp_group)), partial_(std::move(partial)) {
  if (group_.size() == 1) return;
  std::vector<std::size_t> order(all.buckets.size());
  for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all.buckets[a].block > all.buckets[b].block; });
  std::size_t largest = 0;
  for (const BucketLayout& bucket : all.buckets)
    largest = std::max(largest, received_elements(levels_, group_.rank(), bucket_cuts(bucket, group_.size())));
  for (auto& slot : received_) slot = std::decay_t<decltype(slot)>("sestina::received", largest);
  for (const std::size_t b : order)
    add_bucket(all.buckets[b], gradients.data() + all.begin[b], buckets_.size() % bucket_places);
}

template <class Exec>
void GradientReduce<Exec>::add_bucket(const BucketLayout& layout, float* begin, std::size_t slot) {
  const auto cut = bucket_cuts(layout, group_.size());
  Bucket bucket;
  bucket.block = layout.block;
  float* place = received_[slot].data();
  std::vector<int> owners = levels_.passed_on_by(group_.rank());
  owners.insert(owners.begin(), group_.rank());
  for (const int owner : owners) {
    const auto o = static_cast<std::size_t>(owner);
    const auto length = static_cast<std::size_t>(cut[o + 1] - cut[o]);
    const std::size_t others = length * (levels_.mates(group_.rank()).size() - 1);
    bucket.node_pieces.push_back({Vector<float, Exec>(begin + cut[o], length), Vector<float, Exec>(place, others)});
    place += others;
  }
  bucket.node_sums = Vector<float, Exec>(place, bucket.node_pieces[0].own.extent(0) * (levels_.nodes.size() - 1));
  route_pieces(bucket, cut, begin);
  if (levels_.nodes.size() > 1) route_between(bucket, cut, begin);
  if (layout.cut.empty()) {
    std::vector<std::vector<Block>> owned;
    for (std::size_t r = 0; r + 1 < cut.size(); ++r) owned.push_back({floats(begin, cut[r], cut[r + 1])});
    bucket.sums = make_gather(group_, "summed gradients", owned);
  }
  buckets_.push_back(std::move(bucket));
}

// Inside the node: every piece to the rank that sums it there.
template <class Exec>
void GradientReduce<Exec>::route_pieces(Bucket& bucket, const std::vector<std::int64_t>& cut, float* begin) {
  const int me = group_.rank(), here = levels_.node(me);
  std::vector<Message> sends, receives;
  std::size_t number = 0;  // of the mate among the others
  for (const int mate : levels_.mates(me)) {
    if (mate == me) continue;
    Message out{mate, {floats(begin, cut[static_cast<std::size_t>(mate)], cut[static_cast<std::size_t>(mate) + 1])}};
    Message in{mate, {}};
    for (int owner = 0; owner < group_.size(); ++owner)
      if (levels_.node(owner) != here && levels_.relay(here, owner) == mate)
        out.blocks.push_back(
            floats(begin, cut[static_cast<std::size_t>(owner)], cut[static_cast<std::size_t>(owner) + 1]));
    for (const NodePiece& piece : bucket.node_pieces) {
      const std::size_t length = piece.own.extent(0);
      in.blocks.push_back(block_of(piece.others.data() + number * length, length * sizeof(float)));
    }
    sends.push_back(std::move(out));
    receives.push_back(std::move(in));
    ++number;
  }
  bucket.pieces = group_.make_exchange("gradients", std::move(sends), std::move(receives));
}

// Between nodes: sums to their owners.
template <class Exec>
void GradientReduce<Exec>::route_between(Bucket& bucket, const std::vector<std::int64_t>& cut, float* begin) {
  const int me = group_.rank(), here = levels_.node(me);
  std::vector<Message> sends, receives;
  for (const int owner : levels_.passed_on_by(group_.rank()))
    sends.push_back(
        {owner, {floats(begin, cut[static_cast<std::size_t>(owner)], cut[static_cast<std::size_t>(owner) + 1])}});
  const std::size_t length = bucket.node_pieces[0].own.extent(0);
  float* place = bucket.node_sums.data();
  for (int node = 0; node < static_cast<int>(levels_.nodes.size()); ++node) {
    if (node == here) continue;
    receives.push_back({levels_.relay(node, me), {block_of(place, length * sizeof(float))}});
    place += length;
  }
  bucket.between = group_.make_exchange("sums of nodes", std::move(sends), std::move(receives));
}

template <class Exec>
void GradientReduce<Exec>::start(std::size_t number) {
  using State = typename Bucket::State;
  if (number >= bucket_places && buckets_[number - bucket_places].state != State::idle &&
      buckets_[number - bucket_places].state != State::summed) {
    add_up(buckets_[number - bucket_places]);
    start_after(exec_, group_, "reduce");  // its turn in the slot ends
  }
  buckets_[number].pieces->start();
  buckets_[number].state = State::pieces_under_way;
}

// The pieces of this node are here.
template <class Exec>
void GradientReduce<Exec>::sum_in_node(Bucket& bucket) {
  const std::vector<int>& mates = levels_.mates(group_.rank());
  const int place = levels_.place_of[static_cast<std::size_t>(group_.rank())];
  for (const NodePiece& piece : bucket.node_pieces)
    tree_sum<Exec, float>(exec_, place, static_cast<int>(mates.size()), piece.own, piece.others, piece.own);
  if (!bucket.between) return;
  start_after(exec_, group_, "reduce");
  bucket.between->start();
  bucket.state = Bucket::State::between_under_way;
}

template <class Exec>
void GradientReduce<Exec>::add_up(Bucket& bucket) {
  if (bucket.state == Bucket::State::pieces_under_way) {
    bucket.pieces->finish_in(queue_of(exec_));
    sum_in_node(bucket);
  }
  if (bucket.between) {
    bucket.between->finish_in(queue_of(exec_));
    const Vector<float, Exec> own = bucket.node_pieces[0].own;
    tree_sum<Exec, float>(exec_, levels_.node(group_.rank()), static_cast<int>(levels_.nodes.size()), own,
                          bucket.node_sums, own);
  }
  bucket.state = Bucket::State::summed;
  if (!bucket.sums) return;
  start_after(exec_, group_, "reduce");
  bucket.sums->start();
}

template <class Exec>
void GradientReduce<Exec>::block_done(int block) {
  for (const PartialGradient<Exec>& partial : partial_)
    if (partial.block == block) partial.group->sum(exec_, partial.gradient);
  bool ordered = false;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].block == block && buckets_[b].state == Bucket::State::idle) {
      if (!ordered) start_after(exec_, group_, "reduce");
      ordered = true;
      start(b);
    } else if (buckets_[b].state == Bucket::State::pieces_under_way) {
      if (buckets_[b].pieces->test() && buckets_[b].between) sum_in_node(buckets_[b]);
    } else if (buckets_[b].state == Bucket::State::between_under_way) {
      buckets_[b].between->test();
    } else if (buckets_[b].sums) {
      buckets_[b].sums->test();
    }
  }
}

template <class Exec>
void GradientReduce<Exec>::finish() {
  for (Bucket& bucket : buckets_)
    if (bucket.state != Bucket::State::idle && bucket.state != Bucket::State::summed) add_up(bucket);
  for (Bucket& bucket : buckets_) {
    SESTINA_REQUIRE(bucket.state == Bucket::State::summed, "the bucket of block {} was never started", bucket.block);
    if (bucket.sums) bucket.sums->finish_in(queue_of(exec_));
    bucket.state = Bucket::State::idle;
  }
}

template <class Exec>
std::int64_t GradientReduce<Exec>::exchanges_per_step() const {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets_) count += 1 + (bucket.between ? 1 : 0) + (bucket.sums ? 1 : 0);
  return count;
}

#define SESTINA_GRADIENT_REDUCE(Exec) template class GradientReduce<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_GRADIENT_REDUCE)

}  // namespace sestina

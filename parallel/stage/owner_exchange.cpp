#include "parallel/stage/owner_exchange.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/base/threads.hpp"
#include "kernels/blas/sums.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/comm/stream_order.hpp"
#include "parallel/plan/expert_layout.hpp"

namespace sestina {

namespace {

Block floats(float* begin, std::size_t n) { return block_of(begin, n * sizeof(float)); }

// Makes one message to each peer, or one for each block, which needs no copy in a device's memory.
std::vector<Message> messages(const std::map<int, std::vector<Block>>& by_peer, bool packs) {
  std::vector<Message> list;
  for (const auto& [peer, blocks] : by_peer) {
    if (packs)
      list.push_back({peer, blocks});
    else
      for (const Block& block : blocks) list.push_back({peer, {block}});
  }
  return list;
}

}  // namespace

template <class Exec>
GradientReduce<Exec>::GradientReduce(const Exec& exec, Communicator& dp_group, const GradientBuckets& all,
                                     Vector<float, Exec> gradients, std::vector<PartialGradient<Exec>> partial,
                                     std::size_t small_place, std::unique_ptr<OwnedSums<Exec>> sums, bool by_library)
    : exec_(exec),
      group_(dp_group),
      partial_(std::move(partial)),
      sums_(std::move(sums)),
      to_all_(all.to_all),
      turn_(all.turn) {
  const BucketReduction reduction = bucket_reduction(all.buckets, bulk_levels(dp_group), !is_host<Exec>, small_place);
  if (reduction.places == 0 && sums_ == nullptr) return;
  std::vector<std::size_t> order(all.buckets.size());
  for (std::size_t b = 0; b < order.size(); ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return all.buckets[a].block > all.buckets[b].block; });
  if (by_library && reduction.places > 0 && sums_ == nullptr && add_library_sums(order, all, gradients.data())) return;
  for (std::size_t place = 0; place < reduction.places; ++place)
    received_.emplace_back("sestina::received", reduction.place_elements[static_cast<std::size_t>(group_.rank())]);
  for (const std::size_t b : order)  // one rank by itself adds up what it has, without a round
    add_bucket(b, all, gradients.data() + all.begin[b], reduction.places == 0 ? ReduceRounds() : reduction.rounds[b]);
}

template <class Exec>
std::vector<typename GradientReduce<Exec>::Stretch> GradientReduce<Exec>::stretches(const BucketLayout& layout,
                                                                                    float* begin, std::int64_t chunk,
                                                                                    std::int64_t chunks) const {
  const std::vector<std::int64_t> cut = bucket_cuts(layout, group_.size());
  std::vector<Stretch> owned;
  for (std::size_t r = 0; r + 1 < cut.size(); ++r) {
    const std::int64_t length = cut[r + 1] - cut[r];
    const auto at = [&](std::int64_t number) { return length * number / chunks; };
    owned.push_back({begin + cut[r] + at(chunk), static_cast<std::size_t>(at(chunk + 1) - at(chunk)),
                     static_cast<std::size_t>((length + chunks - 1) / chunks)});
  }
  return owned;
}

// Makes a sum of the group's library of each bucket. Returns false where it has none: then nothing is made.
template <class Exec>
bool GradientReduce<Exec>::add_library_sums(const std::vector<std::size_t>& order, const GradientBuckets& all,
                                            float* begin) {
  for (const std::size_t number : order) {
    const BucketLayout& layout = all.buckets[number];
    const std::vector<Stretch> owned = stretches(layout, begin + all.begin[number], 0, 1);
    std::vector<Block> blocks;
    for (const Stretch& stretch : owned) blocks.push_back(floats(stretch.begin, stretch.length));
    std::unique_ptr<Exchange> sum = group_.make_reduce_scatter("gradients", blocks);
    if (!sum) return false;  // of the first bucket, as of any
    Chunk chunk;
    chunk.block = layout.block;
    chunk.bucket = number;
    chunk.rounds.emplace_back().exchange = std::move(sum);
    if (layout.cut.empty() || to_all_) chunk.sums = gather_sums(owned, true);
    chunks_.push_back(std::move(chunk));
  }
  return true;
}

template <class Exec>
Gather GradientReduce<Exec>::gather_sums(const std::vector<Stretch>& owned, bool by_library) {
  std::vector<std::vector<Block>> sums;
  for (const Stretch& stretch : owned) sums.push_back({floats(stretch.begin, stretch.length)});
  return make_gather(group_, "summed gradients", sums, by_library);
}

template <class Exec>
void GradientReduce<Exec>::add_bucket(std::size_t number, const GradientBuckets& all, float* begin,
                                      const ReduceRounds& rounds) {
  const BucketLayout& layout = all.buckets[number];
  const std::vector<std::int64_t> cut = bucket_cuts(layout, group_.size());
  for (std::int64_t chunk = 0; chunk < rounds.chunks; ++chunk) {
    const std::vector<Stretch> owned = stretches(layout, begin, chunk, rounds.chunks);
    add_chunk(number, layout, owned, rounds.levels);
    if (!sums_) continue;
    const Stretch& own = owned[static_cast<std::size_t>(group_.rank())];
    Chunk& made = chunks_.back();
    made.own = Vector<float, Exec>(own.begin, own.length);
    made.sum_begin = static_cast<std::size_t>(all.sum_begin(number, group_.rank()) - all.begin.back() +
                                              (own.begin - begin) - cut[static_cast<std::size_t>(group_.rank())]);
  }
}

template <class Exec>
void GradientReduce<Exec>::add_chunk(std::size_t number, const BucketLayout& bucket, const std::vector<Stretch>& owned,
                                     const std::vector<int>& levels) {
  float* place = received_.empty() ? nullptr : received_[chunks_.size() % received_.size()].data();
  Chunk chunk;
  chunk.block = bucket.block;
  chunk.bucket = number;
  // The first chunk of a bucket stands for all of them where exchanges are counted.
  const char* name = chunks_.empty() || chunks_.back().bucket != number ? "gradients" : "further gradients";
  int before = 0;
  for (const int level : levels) {
    chunk.rounds.push_back(make_round(std::exchange(name, "further gradients"), owned, before, level, place));
    before = level;
  }
  if (bucket.cut.empty() || to_all_) chunk.sums = gather_sums(owned, false);
  chunks_.push_back(std::move(chunk));
}

template <class Exec>
typename GradientReduce<Exec>::Round GradientReduce<Exec>::make_round(const char* name,
                                                                      const std::vector<Stretch>& owned,
                                                                      int level_before, int level, float*& place) {
  const RoundRoute route = round_route(group_.size(), group_.rank(), level_before, level);
  Round round;
  round.place = route.place;
  round.parts = route.parts;
  std::map<int, std::vector<Block>> sends, receives;
  for (const RoundRoute::Way& way : route.sent) {
    const Stretch& piece = owned[static_cast<std::size_t>(way.owner)];
    if (piece.length > 0) sends[way.to].push_back(floats(piece.begin, piece.length));
  }
  for (std::size_t k = 0; k < route.kept.size(); ++k) {
    const Stretch& piece = owned[static_cast<std::size_t>(route.kept[k])];
    float* from = place;
    for (const int peer : route.from[k]) {
      receives[peer].push_back(floats(from, piece.length));
      from += piece.length;
    }
    round.pieces.push_back({Vector<float, Exec>(piece.begin, piece.length),
                            Vector<float, Exec>(place, piece.length * route.from[k].size())});
    place += piece.room * route.from[k].size();
  }
  round.exchange = group_.make_exchange(name, messages(sends, is_host<Exec>), messages(receives, is_host<Exec>));
  return round;
}

template <class Exec>
void GradientReduce<Exec>::free_place(int block) {
  if (!sums_) return;
  const auto of_block = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& c) { return c.block == block; });
  if (of_block == chunks_.end()) return;
  for (std::size_t number = 0; number < chunks_.size(); ++number)
    while (turn_[chunks_[number].bucket] == turn_[of_block->bucket] && chunks_[number].under_way()) advance(number);
}

template <class Exec>
void GradientReduce<Exec>::add_micro(Chunk& chunk) {
  if (chunk.own.size() > 0) sums_->add(exec_, chunk.micros - 1, chunk.own, chunk.sum_begin);
  chunk.started = false;
}

// A round must overwrite nothing that is still to be summed with what it receives: chunks of one bucket lay their
// rounds out equally, other chunks in the same place have to be over. Which ones does not depend on lengths on this
// rank, so all ranks do the same.
template <class Exec>
void GradientReduce<Exec>::make_room(std::size_t number, std::size_t round) {
  if (received_.empty()) return;  // sums of the library are taken in place
  for (std::size_t older = number % received_.size(); older < chunks_.size(); older += received_.size()) {
    const bool same_bucket = chunks_[older].bucket == chunks_[number].bucket;
    if (same_bucket && older >= number) continue;
    while (chunks_[older].under_way() && (!same_bucket || chunks_[older].at <= round)) advance(older);
  }
}

template <class Exec>
void GradientReduce<Exec>::start(std::size_t number, std::size_t round) {
  Chunk& chunk = chunks_[number];
  if (chunk.rounds.empty()) {
    ++chunk.micros;
    return add_micro(chunk);
  }
  make_room(number, round);
  start_after(exec_, group_, "reduce");
  chunk.rounds[round].exchange->start();
  chunk.at = round;
  chunk.started = true;
  if (round == 0) ++chunk.micros;
}

// Waits for the round under way, adds up, and starts the next one or lets all ranks have the sums.
template <class Exec>
void GradientReduce<Exec>::advance(std::size_t number) {
  Chunk& chunk = chunks_[number];
  Round& round = chunk.rounds[chunk.at];
  round.exchange->finish_in(queue_of(exec_));
  for (const Piece& piece : round.pieces)
    tree_sum<Exec, float>(exec_, round.place, round.parts, piece.own, piece.others, piece.own);
  if (++chunk.at < chunk.rounds.size()) return start(number, chunk.at);
  if (sums_) return add_micro(chunk);
  if (!chunk.sums) return;
  start_after(exec_, group_, "reduce");
  chunk.sums.start();
}

template <class Exec>
void GradientReduce<Exec>::block_done(int block) {
  for (const PartialGradient<Exec>& partial : partial_)
    if (partial.block == block) partial.group->sum(exec_, partial.gradient);
  for (std::size_t number = 0; number < chunks_.size(); ++number) {
    Chunk& chunk = chunks_[number];
    if (chunk.under_way() && chunk.at + 1 < chunk.rounds.size())
      advance(number);
    else if (chunk.started && !chunk.under_way() && chunk.sums)
      go_on(exec_, group_, chunk.sums, "reduce");
  }
  for (std::size_t number = 0; number < chunks_.size(); ++number)
    if (chunks_[number].block == block && !chunks_[number].started) start(number, 0);
  test();
}

// What follows the messages waits for its turn.
template <class Exec>
void GradientReduce<Exec>::test() {
  for (Chunk& chunk : chunks_) {
    if (chunk.under_way()) chunk.rounds[chunk.at].exchange->test();
    if (chunk.started && !chunk.under_way() && chunk.sums) chunk.sums.test();
  }
}

template <class Exec>
void GradientReduce<Exec>::start_last_round(std::size_t bucket) {
  for (std::size_t number = 0; number < chunks_.size(); ++number) {
    const Chunk& chunk = chunks_[number];
    while (chunk.bucket == bucket && chunk.under_way() && chunk.at + 1 < chunk.rounds.size()) advance(number);
  }
}

template <class Exec>
void GradientReduce<Exec>::finish_bucket(std::size_t bucket) {
  for (std::size_t number = 0; number < chunks_.size(); ++number) {
    Chunk& chunk = chunks_[number];
    if (chunk.bucket != bucket || !chunk.started) continue;
    while (chunk.under_way()) advance(number);
    if (chunk.sums) sestina::finish(exec_, group_, chunk.sums, "reduce");
    chunk.started = false;
  }
}

template <class Exec>
void GradientReduce<Exec>::finish() {
  const int micros = sums_ ? sums_->micros() : 1;
  for (const Chunk& chunk : chunks_)
    SESTINA_REQUIRE(chunk.micros == micros, "the bucket of block {} was started {} times, not {}", chunk.block,
                    chunk.micros, micros);
  for (bool left = true; left;) {  // a round of each in turn
    left = false;
    for (std::size_t number = 0; number < chunks_.size(); ++number) {
      if (chunks_[number].under_way()) advance(number);
      left = left || chunks_[number].under_way();
    }
  }
  for (Chunk& chunk : chunks_)
    if (chunk.started && chunk.sums) go_on(exec_, group_, chunk.sums, "reduce");
  for (Chunk& chunk : chunks_) {
    if (chunk.started && chunk.sums) chunk.sums.finish_in(queue_of(exec_));
    chunk.started = false;
    chunk.micros = 0;
  }
}

template <class Exec>
std::int64_t GradientReduce<Exec>::exchanges_per_step() const {
  std::int64_t count = 0;
  for (const Chunk& chunk : chunks_) count += static_cast<std::int64_t>(chunk.rounds.size()) + (chunk.sums ? 1 : 0);
  return sums_ ? count * sums_->micros() : count;
}

#define SESTINA_GRADIENT_REDUCE(Exec) template class GradientReduce<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_GRADIENT_REDUCE)

template <class Exec, class T>
WeightGather<Exec, T>::WeightGather(const Exec& exec, Communicator& group, const StagePlan& stage,
                                    const GradientBuckets& all, const Arena<Exec, T>& arena, const OwnerGroup& members,
                                    bool by_library)
    : exec_(exec), group_(group) {
  if (group.size() == 1 || arena.layout().weights_in_turn) return;
  for (std::size_t b = 0; b < all.buckets.size(); ++b) {
    const BucketLayout& layout = all.buckets[b];
    if (layout.cut.empty() || all.of_experts[b] != members.of_experts) continue;  // every rank updates it, or others
    std::vector<std::vector<Block>> owned(static_cast<std::size_t>(group.size()));
    for (const int spec : layout.specs) {
      const auto i = static_cast<std::size_t>(spec);
      for (int rank = 0; rank < group.size(); ++rank) {
        const OwnedRows rows = owned_rows(stage, all, spec, arena.specs()[i], members.first + rank * members.step);
        if (rows.begin == rows.end) continue;
        owned[static_cast<std::size_t>(rank)].push_back(block_of_rows<Exec, T>(arena, i, rows));
      }
    }
    buckets_.push_back({layout.block, b, make_gather(group, "weights", owned, by_library), false});
  }
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.block < b.block; });
}

template <class Exec, class T>
bool WeightGather<Exec, T>::start() {
  if (buckets_.empty()) return true;
  const bool ordered = start_after(exec_, group_, "update");
  for (Bucket& bucket : buckets_) {
    if (!bucket.open) bucket.weights.start();
    bucket.open = true;
  }
  return ordered;
}

template <class Exec, class T>
void WeightGather<Exec, T>::start(std::size_t number) {
  for (Bucket& bucket : buckets_) {
    if (bucket.number != number) continue;
    start_after(exec_, group_, "update of a bucket");
    bucket.weights.start();
    bucket.open = true;
  }
}

template <class Exec, class T>
void WeightGather<Exec, T>::test() {
  for (Bucket& bucket : buckets_)
    if (bucket.open) bucket.weights.test();
}

// Buckets enter their second phase a block ahead, whatever has come.
template <class Exec, class T>
void WeightGather<Exec, T>::before_forward(int block) {
  const auto next = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.block > block; });
  for (Bucket& bucket : buckets_) {
    if (!bucket.open) continue;
    if (bucket.block <= block) {
      wait_for(bucket);
    } else if (bucket.block == next->block) {
      const SecondsSpent spent(wait_seconds_);
      go_on(exec_, group_, bucket.weights, "weights");
    } else {
      bucket.weights.test();
    }
  }
}

template <class Exec, class T>
void WeightGather<Exec, T>::finish() {
  for (Bucket& bucket : buckets_)
    if (bucket.open) wait_for(bucket);
}

template <class Exec, class T>
void WeightGather<Exec, T>::wait_for(Bucket& bucket) {
  const SecondsSpent spent(wait_seconds_);
  sestina::finish(exec_, group_, bucket.weights, "weights");
  bucket.open = false;
}

#define SESTINA_WEIGHT_GATHER(Exec, T) template class WeightGather<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_WEIGHT_GATHER)

}  // namespace sestina

// The exchanges between the ranks that compute and those that own: gradients travel to their owners, and updated
// weights back to all ranks.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "core/layout/arena.hpp"
#include "core/model/seams.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "parallel/rounds/reduce_rounds.hpp"
#include "parallel/stage/owned_sums.hpp"

namespace sestina {

// Gradients travel to their owners bucket by bucket, as the backward pass finishes them: a variable reduce-scatter in
// the rounds of parallel/rounds/reduce_rounds.hpp, whose sums are those of tree_sum over all ranks, so that no bit
// depends on the library, on arrival or on the rounds. What comes from others lies in a few places, in which chunks of
// buckets take turns: two buckets of memory at most, or two small places, on however many ranks. A gradient of which
// several tensor-parallel ranks hold parts is summed over them first.
//
// The schedule is a matter of the program alone. When a block is finished, every chunk under way that has a further
// round enters it, oldest first; then the block's own chunks start their first one, for which chunks that lie in the
// same memory are moved on as far as it takes. So a round has the backward pass of a block to travel under, every rank
// starts the same operations in the same order whatever comes when, and a wait is only for what all ranks have started
// before they wait: there is no deadlock.
//
// Where whole gradients take turns in places, every micro-batch is reduced by itself: a place is free for another block
// when the sums of its chunks are over, and what is owned of them has been added to the sums of the micro-batches
// before.

// A gradient of which each rank of a group has a part.
template <class Exec>
struct PartialGradient {
  int block = 0;
  Vector<float, Exec> gradient;
  GroupOps<Exec>* group = nullptr;
};

template <class Exec>
class GradientReduce {
 public:
  // gradients: the whole buffer, laid out as the buckets say, which are cut for the ranks of the group. small_place:
  // see bucket_reduction. sums: null where gradients stay until the end of the step. by_library: where the group's
  // library makes sums as a whole, these are taken, with its bits, and no memory for what comes from others.
  GradientReduce(const Exec&, Communicator& dp_group, const GradientBuckets&, Vector<float, Exec> gradients,
                 std::vector<PartialGradient<Exec>>, std::size_t small_place = small_place_elements,
                 std::unique_ptr<OwnedSums<Exec>> sums = nullptr, bool by_library = false);

  bool takes_each_micro() const { return sums_ != nullptr; }  // else the sum of a step's micro-batches
  // Called before gradients of a block are written: waits until its place is free.
  void free_place(int block);
  // Called when the gradients of a block are finished on this rank: starts the buckets that the block completes, and
  // moves others on.
  void block_done(int block);
  // Called after the last backward pass, in the same order on all ranks: returns when this rank has the sums of what it
  // owns of a bucket.
  void finish_bucket(std::size_t bucket);
  // Called in the same way, before that: lets the last round of a bucket begin.
  void start_last_round(std::size_t bucket);
  void test();  // moves messages on
  // Returns when this rank has the sums of all that it owns.
  void finish();

  std::int64_t exchanges_per_step() const;  // exchanges started in a step

 private:
  // The piece of an owner: where this rank's sum comes to lie, and the sums of the round's other parts in their order.
  struct Piece {
    Vector<float, Exec> own, others;
  };
  struct Round {
    std::unique_ptr<Exchange> exchange;
    int place = 0, parts = 1;  // place of this rank's sums among the parts that the round adds up
    std::vector<Piece> pieces;
  };
  struct Chunk {
    int block = 0;
    std::size_t bucket = 0;
    std::vector<Round> rounds;
    Gather sums;         // exists only where every rank needs all sums (replicated, parallel.reduce)
    std::size_t at = 0;  // the round under way; after the last: summed
    bool started = false;
    // Where gradients take turns: what this rank owns, where its sum over micro-batches begins, and how many of a
    // step's micro-batches have started.
    Vector<float, Exec> own;
    std::size_t sum_begin = 0;
    int micros = 0;
    bool under_way() const { return started && at < rounds.size(); }
  };
  // A chunk of an owner's piece in the gradient buffer; room: the length of the piece's longest chunk.
  struct Stretch {
    float* begin;
    std::size_t length, room;
  };
  // Returns chunk number `chunk` of so many of what each rank owns of a bucket that begins at `begin`.
  std::vector<Stretch> stretches(const BucketLayout&, float* begin, std::int64_t chunk, std::int64_t chunks) const;
  bool add_library_sums(const std::vector<std::size_t>& order, const GradientBuckets&, float* begin);
  Gather gather_sums(const std::vector<Stretch>& owned, bool by_library);
  void add_bucket(std::size_t number, const GradientBuckets&, float* begin, const ReduceRounds&);
  void add_chunk(std::size_t bucket, const BucketLayout&, const std::vector<Stretch>& owned,
                 const std::vector<int>& levels);
  Round make_round(const char* name, const std::vector<Stretch>& owned, int level_before, int level, float*& place);
  void start(std::size_t chunk, std::size_t round);
  void make_room(std::size_t chunk, std::size_t round);
  void add_micro(Chunk&);
  void advance(std::size_t chunk);

  Exec exec_;
  Communicator& group_;
  std::vector<Chunk> chunks_;  // in the order in which they are started
  std::vector<PartialGradient<Exec>> partial_;
  std::vector<Kokkos::View<float*, typename Exec::memory_space>> received_;  // the places
  std::unique_ptr<OwnedSums<Exec>> sums_;
  bool to_all_;            // every rank needs all sums
  std::vector<int> turn_;  // by bucket: the place of its gradients; empty: one of its own
};

// Returns the rows of tensor i, as they are computed with, that a rank owns.
template <class Exec, class T>
Block block_of_rows(const Arena<Exec, T>& arena, std::size_t i, const OwnedRows& rows) {
  const std::size_t row = arena.row_bytes(i);
  return block_of(static_cast<char*>(arena.computed_with(i)) + static_cast<std::size_t>(rows.begin) * row,
                  static_cast<std::size_t>(rows.end - rows.begin) * row);
}

// Updated weights travel from their owners to all ranks in a variable all-gather, bucket by bucket, under the next
// forward pass. Each tensor's rows are sent from where the owner computes with them to where the others do: nothing is
// staged. Weights that take turns come block by block instead (block_gather.hpp). by_library: see make_gather.

// The ranks of a group among the data-parallel ranks: member m is rank first + m step. of_experts: they exchange the
// buckets of the experts that they hold (expert_layout.hpp), else those of all ranks.
struct OwnerGroup {
  bool of_experts = false;
  int first = 0, step = 1;
};

template <class Exec, class T>
class WeightGather {
 public:
  WeightGather(const Exec&, Communicator& group, const StagePlan&, const GradientBuckets&, const Arena<Exec, T>&,
               const OwnerGroup& = {}, bool by_library = false);

  // Starts all buckets that have not been started once the owned weights have been updated, first those that the
  // forward pass needs first. Returns false where the host has waited for the space.
  bool start();
  void start(std::size_t bucket);  // that one, if its weights travel: they have been updated
  void test();                     // moves messages on
  // Waits for the weights that the block needs; those of the next block enter their second phase, and the rest is moved
  // on.
  void before_forward(int block);
  void finish();
  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }  // seconds of waiting since the last call

  std::int64_t exchanges_per_step() const { return static_cast<std::int64_t>(buckets_.size()); }

 private:
  struct Bucket {
    int block = 0;  // the lowest block in it, which needs it first
    std::size_t number = 0;
    Gather weights;
    bool open = false;
  };
  void wait_for(Bucket&);

  Exec exec_;
  Communicator& group_;
  std::vector<Bucket> buckets_;  // in the order of the forward pass
  double wait_seconds_ = 0;
};

}  // namespace sestina

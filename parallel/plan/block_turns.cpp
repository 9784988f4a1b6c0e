#include "parallel/plan/block_turns.hpp"

#include <algorithm>
#include <array>

namespace sestina {
namespace {

bool is_head(const StagePlan& stage, int block) { return block > stage.layers.end; }

int last_block_of(const StagePlan& stage) {
  int last = 0;
  for (const TensorSpec& spec : stage.specs) last = std::max(last, spec.block);
  return last;
}

// Returns whether the stage has both ends of the model and the head is the embedding.
bool ties_its_ends(const StagePlan& stage) {
  bool embeds = false, ends = false, has_head = false;
  for (const TensorSpec& spec : stage.specs) {
    embeds = embeds || spec.block == 0;
    ends = ends || is_head(stage, spec.block);
    has_head = has_head || spec.role == Role::head;
  }
  return embeds && ends && !has_head;
}

}  // namespace

int place_of_block(const StagePlan& stage, int block) {
  return block == 0 || is_head(stage, block) ? 0 : 1 + block % (turn_places - 1);
}

TurnLayout lay_out_turns(const StagePlan& stage, const std::vector<std::int64_t>& size) {
  const bool tied = ties_its_ends(stage);
  TurnLayout turns;
  turns.begin.resize(size.size());
  std::array<std::int64_t, turn_places> largest{};
  for (std::size_t block = 0; block < size.size(); ++block) {
    std::int64_t& place = largest[at(place_of_block(stage, static_cast<int>(block)))];
    const std::int64_t from = tied && is_head(stage, static_cast<int>(block)) ? place : 0;
    turns.begin[block] = from;
    place = std::max(place, from + size[block]);
  }
  for (std::size_t block = 0; block < size.size(); ++block)
    for (int place = 0; place < place_of_block(stage, static_cast<int>(block)); ++place)
      turns.begin[block] += largest[at(place)];
  for (const std::int64_t place : largest) turns.elements += place;
  return turns;
}

TurnLayout bucket_turns(const StagePlan& stage, const std::vector<BucketLayout>& buckets) {
  std::vector<std::int64_t> size(at(last_block_of(stage) + 1));
  TurnLayout turns;
  for (const BucketLayout& bucket : buckets) {
    turns.begin.push_back(size[at(bucket.block)]);
    size[at(bucket.block)] += bucket.elements;
  }
  const TurnLayout blocks = lay_out_turns(stage, size);
  for (std::size_t b = 0; b < buckets.size(); ++b) turns.begin[b] += blocks.begin[at(buckets[b].block)];
  turns.elements = blocks.elements;
  return turns;
}

WeightTurns weight_turns(const StagePlan& stage, const std::vector<TensorSpec>& local) {
  const auto aligned = [](std::int64_t n) {
    return static_cast<std::int64_t>(aligned_elements(static_cast<std::size_t>(n)));
  };
  WeightTurns turns;
  std::vector<std::int64_t> matrices(at(last_block_of(stage) + 1)), vectors = matrices;
  for (const TensorSpec& spec : local) {
    std::int64_t& end = (spec.is_vector() ? vectors : matrices)[at(spec.block)];
    if (!spec.follows) end = aligned(end);
    turns.offset.push_back(end);
    if (spec.has_master()) end += spec.elements();
  }
  for (auto* sizes : {&matrices, &vectors})
    for (std::int64_t& size : *sizes) size = aligned(size);
  const TurnLayout of_matrices = lay_out_turns(stage, matrices), of_vectors = lay_out_turns(stage, vectors);
  for (std::size_t i = 0; i < local.size(); ++i)
    turns.offset[i] += (local[i].is_vector() ? of_vectors : of_matrices).begin[at(local[i].block)];
  turns.matrices = of_matrices.elements;
  turns.vectors = of_vectors.elements;
  return turns;
}

void place_weights(const StagePlan& stage, RankLayout& layout) {
  std::vector<TensorSpec> local;
  for (const TensorHolding& tensor : layout.tensors) local.push_back(tensor.local);
  const WeightTurns turns = weight_turns(stage, local);
  for (std::size_t i = 0; i < local.size(); ++i)
    layout.tensors[i].weight_offset = static_cast<std::size_t>(turns.offset[i]);
  layout.matrix_elements = static_cast<std::size_t>(turns.matrices);
  layout.vector_elements = static_cast<std::size_t>(turns.vectors);
}

TurnOrder::TurnOrder(const StagePlan& stage) : first(stage.specs.front().block), last(last_block_of(stage)) {
  const bool normed = std::any_of(stage.specs.begin(), stage.specs.end(),
                                  [](const TensorSpec& spec) { return spec.block == 0 && spec.is_vector(); });
  lowest_read = first == 0 && !normed ? 1 : first;
}

ResidentBlocks::ResidentBlocks(const StagePlan& stage)
    : place_(at(last_block_of(stage) + 1), -1), is_here_(place_.size()), tied_(ties_its_ends(stage)) {
  for (const TensorSpec& spec : stage.specs) place_[at(spec.block)] = place_of_block(stage, spec.block);
}

bool ResidentBlocks::bring(int block) {
  if (is_here_[at(block)]) return false;
  const int place = place_[at(block)];
  if (!(tied_ && place == 0))
    for (std::size_t other = 0; other < place_.size(); ++other)
      if (place_[other] == place) is_here_[other] = false;
  is_here_[at(block)] = true;
  return true;
}

void ResidentBlocks::forget() { is_here_.assign(is_here_.size(), false); }

std::vector<std::int64_t> gathers_of_step(const StagePlan& stage, const std::vector<Action>& actions, int number) {
  const TurnOrder order(stage);
  ResidentBlocks resident(stage);
  std::vector<std::int64_t> count(at(order.last + 1));
  const auto bring = [&](int block) {
    if (block >= 0 && resident.bring(block)) ++count[at(block)];
  };
  for (const Action& action : actions) {
    if (action.stage != number) continue;
    if (action.kind == ActionKind::forward)
      for (int block = order.first; block <= order.last; ++block) {
        bring(block);
        bring(order.after_forward(block));
      }
    if (action.kind == ActionKind::backward)
      for (int block = order.last; block >= order.lowest_read; --block) {
        bring(block);
        bring(order.after_backward(block));
      }
  }
  return count;
}

}  // namespace sestina

#include "parallel/stage/block_gather.hpp"

#include "kernels/base/threads.hpp"
#include "parallel/comm/stream_order.hpp"
#include "parallel/plan/expert_layout.hpp"

namespace sestina {
template <class Exec, class T>
BlockGather<Exec, T>::BlockGather(const Exec& exec, Communicator& group, const StagePlan& stage,
                                  const GradientBuckets& all, const Arena<Exec, T>& arena, const OwnerGroup& members)
    : exec_(exec),
      group_(group),
      arena_(arena),
      order_(stage),
      resident_(stage),
      blocks_(static_cast<std::size_t>(order_.last) + 1) {
  std::vector<std::vector<std::vector<Block>>> owned(
      blocks_.size(), std::vector<std::vector<Block>>(static_cast<std::size_t>(group.size())));  // by block and rank
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorSpec& spec = arena.specs()[i];
    if (!spec.has_master() || is_shared_out(spec, all.ep) != members.of_experts) continue;
    const auto block = static_cast<std::size_t>(spec.block);
    for (int rank = 0; rank < group.size(); ++rank) {
      const TensorHolding& own = arena.layout().tensors[i];
      const OwnedRows rows =
          group.size() == 1 ? OwnedRows{own.owned_begin, own.owned_end}
                            : owned_rows(stage, all, static_cast<int>(i), spec, members.first + rank * members.step);
      if (rows.begin == rows.end) continue;
      owned[block][static_cast<std::size_t>(rank)].push_back(block_of_rows<Exec, T>(arena, i, rows));
      blocks_[block].travels = group.size() > 1;
      if (rank == group.rank()) blocks_[block].tensors.push_back(i);
    }
  }
  for (int block = order_.first; block <= order_.last; ++block)
    blocks_[at(block)].weights = make_gather(group, "weights", owned[at(block)]);
}

template <class Exec, class T>
void BlockGather<Exec, T>::bring(int block, int next) {
  for (OfBlock& other : blocks_)
    if (other.open) other.weights.test();
  if (resident_.bring(block)) start(block);
  if (blocks_[at(block)].open) wait_for(blocks_[at(block)]);
  if (next >= 0 && resident_.bring(next)) start(next);
}

template <class Exec, class T>
void BlockGather<Exec, T>::start(int number) {
  OfBlock& block = blocks_[at(number)];
  for (const std::size_t i : block.tensors) arena_.place_owned(exec_, i);
  if (!block.travels) return;
  start_after(exec_, group_, "weights");
  block.weights.start();
  block.open = true;
  ++started_;
}

template <class Exec, class T>
void BlockGather<Exec, T>::wait_for(OfBlock& block) {
  const SecondsSpent spent(wait_seconds_);
  sestina::finish(exec_, group_, block.weights, "weights");
  block.open = false;
}

template <class Exec, class T>
void BlockGather<Exec, T>::forget() {
  finish();
  resident_.forget();
  in_last_step_ = std::exchange(started_, 0);
}

template <class Exec, class T>
void BlockGather<Exec, T>::finish() {
  for (OfBlock& block : blocks_)
    if (block.open) wait_for(block);
}

#define SESTINA_BLOCK_GATHER(Exec, T) template class BlockGather<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_BLOCK_GATHER)

}  // namespace sestina

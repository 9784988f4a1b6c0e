#include "parallel/stage/stage_shares.hpp"

#include <algorithm>
#include <string_view>

#include "core/model/initialise.hpp"
#include "core/optimizer/base/own_blocks.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/exchange/update_exchange.hpp"
#include "parallel/stage/rectangle.hpp"

namespace sestina {
namespace {

Rectangle rectangle_of(const MatrixShare& share) {
  return {share.row_begin, share.row_end, share.col_begin, share.col_end};
}

std::vector<Message> one_message_each(std::map<int, std::vector<Block>>& blocks) {
  std::vector<Message> all;
  for (auto& [peer, list] : blocks) all.push_back({peer, std::move(list)});
  return all;
}

// Returns a group of all ranks by itself, in the memory that they compute in.
template <class Exec>
std::unique_ptr<Communicator> group_of_shares(Communicator& all, int color) {
  std::unique_ptr<Communicator> group = all.split(color, all.rank());
  return is_host<Exec> ? std::move(group) : on_device(std::move(group));
}

}  // namespace

template <class Exec, class T>
StageShares<Exec, T>::StageShares(const Exec& exec, Communicator& all, const StagePlan& stage, const PlanInput& input,
                                  const Arena<Exec, T>& arena, double* nonfinite)
    : exec_(exec), all_(group_of_shares<Exec>(all, 0)), optimizer_(input.optimizer), exchanges_(exec, *all_, "shares") {
  make_groups(all, stage);
  for (const auto& [ranks, bytes] : share_staging(stage, input, all_->rank())) sums_.at(ranks).reserve(bytes);
  const std::vector<std::size_t> rounds = share_rounds(stage, input.parallel);
  hold(stage, rounds);
  exchanges_.make_places(share_places(stage, input.parallel, all_->rank()));
  for (std::size_t r = 0; r < rounds_.size(); ++r) {
    exchanges_.place(r, held_in(rounds_[r]));
    make_exchanges(rounds_[r], stage, rounds[r], rounds[r + 1], input, arena);
  }
  add_items(stage, input);
  std::vector<GroupedShard<Exec, T>> together;
  for (Round& round : rounds_) {
    round.first_together = together.size();
    for (std::size_t h = round.first_held; h < round.end_held; ++h)
      if (held_[h].share.ranks > 1) together.push_back({held_[h].tensor(), &sums_.at(held_[h].share.ranks), true});
    round.end_together = together.size();
  }
  together_ = std::make_unique<ShardedMuon<Exec, T>>(exec, std::move(together), input.optimizer, input.deterministic,
                                                     nonfinite);
}

// Every rank is in one group of each size that the plan has, whether it has shares there or not.
template <class Exec, class T>
void StageShares<Exec, T>::make_groups(Communicator& all, const StagePlan& stage) {
  for (const MatrixShare& share : stage.shares) {
    if (share.ranks == 1 || groups_.count(share.ranks) > 0) continue;
    std::unique_ptr<Communicator> group = group_of_shares<Exec>(all, all.rank() / share.ranks);
    sums_.emplace(share.ranks, *group);
    groups_[share.ranks] = std::move(group);
  }
}

template <class Exec, class T>
void StageShares<Exec, T>::hold(const StagePlan& stage, const std::vector<std::size_t>& rounds) {
  for (std::size_t r = 0; r + 1 < rounds.size(); ++r) {
    Round round;
    round.first_held = held_.size();
    for (std::size_t i = rounds[r]; i < rounds[r + 1]; ++i) {
      const MatrixShare& share = stage.shares[i];
      if (share.rank != all_->rank()) continue;
      Held held;
      held.share = share;
      held.spec = stage.specs[at(share.spec)];
      held.master = decltype(held.master)("sestina::master", static_cast<std::size_t>(share.rows()),
                                          static_cast<std::size_t>(share.cols()));
      held_.push_back(held);
    }
    round.end_held = held_.size();
    rounds_.push_back(std::move(round));
  }
}

template <class Exec, class T>
void StageShares<Exec, T>::add_items(const StagePlan& stage, const PlanInput& input) {
  const MatrixIndex index = matrix_index(tensor_specs(input.model), input.optimizer);
  std::map<std::size_t, std::vector<SeparatePart>> parts;  // of this rank's shares, by spec
  for_separate_shares(stage, input, [&](std::size_t i, const SeparatePart& one) {
    if (stage.shares[i].rank == all_->rank()) parts[at(stage.shares[i].spec)].push_back(one);
  });
  for (Round& round : rounds_) {
    round.first_item = items_.size();
    for (std::size_t h = round.first_held; h < round.end_held; ++h) {
      const Held& held = held_[h];
      if (held.share.ranks > 1) continue;
      for (const SeparatePart& one : parts.at(at(held.share.spec))) {
        MatrixItem<Exec> item;
        item.matrix = part_of_share(held, one.part);
        item.rates = rates_of(held.spec, input.optimizer);
        item.index = index.at(held.spec.name) + static_cast<std::int64_t>(one.matrix);
        item.tensor = held.spec.name;
        items_.push_back(item);
        if (one.is_block) blocks_[one.part.name] = {held.spec, one};
      }
    }
    round.end_item = items_.size();
  }
}

template <class Exec, class T>
OwnedMatrix<Exec> StageShares<Exec, T>::part_of_share(const Held& held, const MatrixPart& part) {
  const auto row = static_cast<std::size_t>(part.row_begin - held.share.row_begin),
             col = static_cast<std::size_t>(part.col_begin - held.share.col_begin);
  const auto cut = [&](const auto& of) {
    return Kokkos::subview(of, std::pair(row, row + static_cast<std::size_t>(part.rows)),
                           std::pair(col, col + static_cast<std::size_t>(part.cols)));
  };
  OwnedMatrix<Exec> matrix{part.name, cut(held.gradient), cut(Matrix<float, Exec>(held.master)), {}};
  if constexpr (!shared) matrix.weight = cut(held.weight);
  return matrix;
}

// Makes one message between each rank that computes with a part of a matrix and each that has a share of it, with
// shares in the order of the plan. A shard that several tensor-parallel ranks hold comes from the first of them and
// goes to all.
template <class Exec, class T>
void StageShares<Exec, T>::make_exchanges(const Round& round, const StagePlan& stage, std::size_t begin,
                                          std::size_t end, const PlanInput& input, const Arena<Exec, T>& arena) {
  const int tp = input.parallel.tp, me = all_->rank();
  Blocks gradients_out, gradients_in, weights_out, weights_in;
  std::size_t next = round.first_held;
  for (std::size_t i = begin; i < end; ++i) {
    const MatrixShare& share = stage.shares[i];
    const TensorSpec& spec = stage.specs[at(share.spec)];
    const Held* held = share.rank == me ? &held_[next++] : nullptr;
    const int first = stage.owner[at(share.spec)] * tp;
    for (int t = 0; t < tp; ++t) {
      const int holder = first + t;
      if (held == nullptr && holder != me) continue;
      const Rectangle shard = rectangle_of(spec, tensor_shard(spec, input.model, tp, t)), whole = rectangle_of(share),
                      part = common_part(shard, whole);
      if (part.is_empty()) continue;
      const bool sends = shard_holders(spec, input.model, tp, t).first == t;
      const auto number = static_cast<std::size_t>(share.spec);
      if (holder == me) {
        if (sends)
          gradients_out[share.rank].push_back(part_block(arena.gradient(number).data(), shard, part, sizeof(float)));
        weights_in[share.rank].push_back(part_block(arena.matrix(number), shard, part, sizeof(T)));
      }
      if (held == nullptr) continue;
      if (sends) gradients_in[holder].push_back(part_block(held->gradient.data(), whole, part, sizeof(float)));
      weights_out[holder].push_back(part_block(held->weight.data(), whole, part, sizeof(T)));
    }
  }
  exchanges_.add(
      all_->make_exchange("gradients of shares", one_message_each(gradients_out), one_message_each(gradients_in)),
      all_->make_exchange("updated shares", one_message_each(weights_out), one_message_each(weights_in)));
}

template <class Exec, class T>
OwnedTensor<Exec, T> StageShares<Exec, T>::Held::tensor() const {
  OwnedTensor<Exec, T> owned;
  owned.spec = spec;
  owned.gradient = Vector<const float, Exec>(this->gradient.data(), this->gradient.size());
  owned.master = Vector<float, Exec>(this->master.data(), this->master.size());
  if constexpr (!shared) owned.weight = Vector<T, Exec>(this->weight.data(), this->weight.size());
  owned.sharded = share.ranks > 1;
  owned.row_begin = share.row_begin;
  owned.row_end = share.row_end;
  if (share.cols() != spec.cols) {
    owned.col_begin = share.col_begin;
    owned.col_end = share.col_end;
  }
  return owned;
}

template <class Exec, class T>
void StageShares<Exec, T>::add_tensors(std::vector<OwnedTensor<Exec, T>>& tensors,
                                       std::vector<GroupOps<Exec>*>& groups) {
  for (const Held& held : held_) {
    tensors.push_back(held.tensor());
    groups.push_back(held.share.ranks > 1 ? &sums_.at(held.share.ranks) : nullptr);
  }
}

template <class Exec, class T>
std::vector<StateField> StageShares<Exec, T>::master_fields() const {
  std::vector<StateField> fields;
  for (const Held& held : held_)
    fields.push_back(field_of(held.tensor(), "/model/" + held.spec.name, held.master.data()));
  return fields;
}

// Fields of blocks are parts of those of their matrices.
template <class Exec, class T>
void StageShares<Exec, T>::add_optimizer_fields(std::vector<StateField>& fields) const {
  constexpr std::size_t before = std::string_view("/optimizer/").size();
  for (StateField& field : fields) {
    const std::size_t end = field.path.rfind('/');
    if (end == field.path.npos || end <= before) continue;
    const auto block = blocks_.find(field.path.substr(before, end - before));
    if (block == blocks_.end()) continue;
    const auto& [whole, one] = block->second;
    become_part_of_whole(field, whole, one.part, one.block, optimizer_);
  }
  for (StateField& field : together_->state()) fields.push_back(std::move(field));
}

template <class Exec, class T>
void StageShares<Exec, T>::initialise(double range, std::uint64_t seed) {
  for (const Held& held : held_) {
    TensorHolding holding;
    holding.whole = holding.local = held.spec;
    holding.local.rows = held.share.rows();
    holding.local.cols = held.share.cols();
    holding.row_begin = held.share.row_begin;
    holding.col_begin = held.share.col_begin;
    initialise_rows<Exec, float>(exec_, holding, 0, held.share.rows(), range, seed,
                                 Vector<float, Exec>(held.master.data(), held.master.size()));
  }
}

template <class Exec, class T>
void StageShares<Exec, T>::clip_by(const QkClip<Exec, T>& clip) {
  clip_ = &clip;
  for (Round& round : rounds_)
    for (std::size_t h = round.first_held; h < round.end_held; ++h) clip.add_rows(held_[h].tensor(), round.clipped);
}

template <class Exec, class T>
void StageShares<Exec, T>::update(Optimizer<Exec, T>& optimizer, std::int64_t t, double factor, double gradient_scale,
                                  Trace* trace) {
  const std::size_t base = optimizer.matrix_count() - items_.size();
  exchanges_.run(trace, "shares of round", [&](std::size_t r) {
    const Round& round = rounds_[r];
    together_->step(exec_, t, factor, gradient_scale, round.first_together, round.end_together);
    optimizer.step_matrices(t, factor, gradient_scale, base + round.first_item, base + round.end_item);
    if (clip_) clip_->scale(exec_, round.clipped);
  });
}

template <class Exec, class T>
void StageShares<Exec, T>::publish() {
  for (std::size_t r = 0; r < rounds_.size(); ++r) exchanges_.publish(r, held_in(rounds_[r]));
}

template <class Exec, class T>
void StageShares<Exec, T>::complete() {
  all_->complete("ranks of shares");
  for (auto& [size, group] : groups_) group->complete("group of a matrix");
}

#define SESTINA_STAGE_SHARES(Exec, T) template class StageShares<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_SHARES)

}  // namespace sestina

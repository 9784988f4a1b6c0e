#include "parallel/stage/matrix_homes.hpp"

#include <algorithm>

#include "core/model/initialise.hpp"
#include "parallel/exchange/update_exchange.hpp"
#include "parallel/plan/expert_owners.hpp"
#include "parallel/stage/rectangle.hpp"

namespace sestina {
template <class Exec, class T>
MatrixHomes<Exec, T>::MatrixHomes(const Exec& exec, Communicator& tp_group, const StagePlan& stage,
                                  const PlanInput& input, const Arena<Exec, T>& arena, int dp_rank)
    : exec_(exec), group_(tp_group), rounds_(exec, tp_group, "homes") {
  for (std::vector<int>& specs : homed_groups(stage, input, dp_rank)) {
    Group group;
    group.specs = std::move(specs);
    groups_.push_back(std::move(group));
  }
  named_.resize(groups_.size());
  if (groups_.empty()) return;
  home_matrices(stage, input, dp_rank);
  const MatrixIndex index = matrix_index(tensor_specs(input.model), input.optimizer);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    rounds_.place(g, homed_in(group));
    group.first_item = items_.size();
    for (std::size_t h = group.first_homed; h < group.end_homed; ++h) {
      const Homed& matrix = homed_[h];
      Matrix<bf16, Exec> rounded;
      if constexpr (!shared) rounded = matrix.weight;
      add_matrix_items<Exec>({matrix.spec, rates_of(matrix.spec, input.optimizer), index.at(matrix.spec.name),
                              matrix.saved, 0, matrix.spec.name},
                             input.optimizer, matrix.gradient, Matrix<float, Exec>(matrix.master), rounded, items_);
    }
    group.end_item = items_.size();
    make_exchanges(group, stage, input, arena);
  }
}

// Makes master weights, and slots large enough for the largest group that uses them.
template <class Exec, class T>
void MatrixHomes<Exec, T>::home_matrices(const StagePlan& stage, const PlanInput& input, int dp_rank) {
  for (Group& group : groups_) {
    group.first_homed = homed_.size();
    for (const int spec : group.specs) {
      if (!is_home(stage, spec, group_.rank())) continue;
      Homed matrix;
      matrix.spec = stage.specs[at(spec)];
      matrix.saved = is_first_owner(stage, spec, input, dp_rank) &&
                     (input.parallel.tp_update == ParallelOptions::TpUpdate::home || group_.rank() == 0);
      matrix.master = decltype(matrix.master)("sestina::master", static_cast<std::size_t>(matrix.spec.rows),
                                              static_cast<std::size_t>(matrix.spec.cols));
      homed_.push_back(matrix);
    }
    group.end_homed = homed_.size();
  }
  rounds_.make_places(home_places(stage, input, dp_rank, group_.rank()));
}

// Makes one message from every holder of shards to every home, and one back, with matrices in the order of the group.
template <class Exec, class T>
void MatrixHomes<Exec, T>::make_exchanges(Group& group, const StagePlan& stage, const PlanInput& input,
                                          const Arena<Exec, T>& arena) {
  const int tp = group_.size(), me = group_.rank();
  const ModelConfig& model = input.model;
  const NodeLevels levels = shard_levels(input.parallel);
  std::vector<Message> gradients_out, gradients_in, weights_out, weights_in;
  for (int peer = 0; peer < tp; ++peer) {
    Message to_home{peer, {}}, from_holder{peer, {}}, to_holder{peer, {}}, from_home{peer, {}};
    std::size_t homed = group.first_homed;
    for (const int number : group.specs) {
      const TensorSpec& spec = stage.specs[at(number)];
      const Rectangle whole = rectangle_of(spec), own = rectangle_of(spec, tensor_shard(spec, model, tp, me)),
                      others = rectangle_of(spec, tensor_shard(spec, model, tp, peer));
      const auto elements = static_cast<std::size_t>(arena.specs()[at(number)].elements());
      // A shard that several ranks hold comes from the first of them and goes to all; where every rank is a home, each
      // takes its own shard of its own result.
      if (is_home(stage, number, peer) && shard_holders(spec, model, tp, me).first == me)
        to_home.blocks.push_back(block_of(arena.owned_gradient(at(number)).data(), elements * sizeof(float)));
      const bool everywhere = stage.home[at(number)] == every_rank;
      if (is_home(stage, number, peer) && (!everywhere || peer == me))
        from_home.blocks.push_back(block_of(arena.homed_matrix(at(number)), elements * sizeof(T)));
      if (!is_home(stage, number, me)) continue;
      const Homed& matrix = homed_[homed++];
      if (shard_holders(spec, model, tp, peer).first == peer)
        from_holder.blocks.push_back(part_block(matrix.gradient.data(), whole, others, sizeof(float)));
      if (!everywhere) to_holder.blocks.push_back(part_block(matrix.weight.data(), whole, others, sizeof(T)));
      if (everywhere && peer == me) to_holder.blocks.push_back(part_block(matrix.weight.data(), whole, own, sizeof(T)));
    }
    const auto sent = static_cast<std::int64_t>(peer == me ? 0 : to_holder.bytes());
    group.shards.add({sent, levels.node(peer) == levels.node(me) ? 0 : sent});
    gradients_out.push_back(std::move(to_home));
    gradients_in.push_back(std::move(from_holder));
    weights_out.push_back(std::move(to_holder));
    weights_in.push_back(std::move(from_home));
  }
  rounds_.add(group_.make_exchange("whole gradients", gradients_out, gradients_in),
              group_.make_exchange("updated shards", weights_out, weights_in));
}

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> MatrixHomes<Exec, T>::tensors() const {
  std::vector<OwnedTensor<Exec, T>> tensors;
  for (const Homed& matrix : homed_) {
    OwnedTensor<Exec, T> whole;
    whole.spec = matrix.spec;
    whole.master = Vector<float, Exec>(matrix.master.data(), matrix.master.size());
    whole.saved = matrix.saved;
    tensors.push_back(whole);
  }
  return tensors;
}

template <class Exec, class T>
std::vector<StateField> MatrixHomes<Exec, T>::master_fields() const {
  std::vector<StateField> fields;
  for (const OwnedTensor<Exec, T>& whole : tensors())
    fields.push_back(field_of(whole, "/model/" + whole.spec.name, whole.master.data()));
  return fields;
}

template <class Exec, class T>
void MatrixHomes<Exec, T>::initialise(double range, std::uint64_t seed) {
  for (const Homed& matrix : homed_) {
    TensorHolding whole;
    whole.whole = whole.local = matrix.spec;
    initialise_rows<Exec, float>(exec_, whole, 0, matrix.spec.rows, range, seed,
                                 Vector<float, Exec>(matrix.master.data(), matrix.master.size()));
  }
}

template <class Exec, class T>
void MatrixHomes<Exec, T>::clip_by(const QkClip<Exec, T>& clip) {
  clip_ = &clip;
  const std::vector<OwnedTensor<Exec, T>> all = tensors();
  for (Group& group : groups_)
    for (std::size_t h = group.first_homed; h < group.end_homed; ++h) {
      OwnedTensor<Exec, T> matrix = all[h];
      if constexpr (!shared) matrix.weight = Vector<T, Exec>(homed_[h].weight.data(), homed_[h].weight.size());
      clip.add_rows(matrix, group.clipped);
    }
}

template <class Exec, class T>
void MatrixHomes<Exec, T>::update(Optimizer<Exec, T>& optimizer, std::int64_t t, double factor, double gradient_scale,
                                  Trace* trace) {
  const std::size_t base = optimizer.matrix_count() - items_.size();
  rounds_.run(trace, "matrices of group", [&](std::size_t g) {
    optimizer.step_matrices(t, factor, gradient_scale, base + groups_[g].first_item, base + groups_[g].end_item);
    if (clip_) clip_->scale(exec_, groups_[g].clipped);
  });
}

template <class Exec, class T>
void MatrixHomes<Exec, T>::publish() {
  for (std::size_t g = 0; g < groups_.size(); ++g) rounds_.publish(g, homed_in(groups_[g]));
}

// A home knows of its own matrices alone, whose counters may differ from those of others: all ranks ask.
template <class Exec, class T>
CoherenceBytes MatrixHomes<Exec, T>::publish(const std::vector<std::size_t>& matrices, std::size_t first) {
  CoherenceBytes sent;
  if (groups_.empty()) return sent;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    named_[g] = std::any_of(matrices.begin(), matrices.end(), [&group = groups_[g], first](std::size_t matrix) {
      return first + group.first_item <= matrix && matrix < first + group.end_item;
    });
  group_.all_reduce(named_.data(), named_.size(), Reduction::max);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (named_[g] == 0) continue;
    rounds_.publish(g, homed_in(groups_[g]));
    sent.add(groups_[g].shards);
  }
  return sent;
}

#define SESTINA_MATRIX_HOSTS(Exec, T) template class MatrixHomes<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_MATRIX_HOSTS)

}  // namespace sestina

#include "core/optimizer/methods/rotated/rotated_updates.hpp"

#include "kernels/optimizer/batch/rotated_batch.hpp"

namespace sestina {

// What needs a number of each matrix in the space, or a pass that depends on when its basis was new, is left to single
// updates.
template <class Space>
bool RotatedUpdates<Space>::declare_in_batch(Workspace<Space>& workspace, const MatrixOptions& options,
                                             const RotatedAdamRule& rule, std::size_t rows, std::size_t cols) {
  if (rule.normalize || rule.keep_rotated || rule.factor_bias_correction) return false;
  if (!may_be_grouped(fields_of(options, rows, cols), rule.precision, rows, cols)) return false;
  declare<FlatScratch<Space>>(workspace, std::size_t{stacks}, FlatStacks::aligned(rows * cols));
  return true;
}

template <class Space>
RotatedUpdates<Space>::RotatedUpdates(const RotatedAdamRule& rule, const std::vector<BatchItem<Space>>& items)
    : rule_(rule), items_(items) {
  std::vector<FlatMatrix> matrices;
  std::vector<const TwoSided<Space>*> sides;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const RotatedAdam<Space>& of = owner(i);
    FlatMatrix one = flat_matrix(items_[i]);
    one.momentum = of.momentum_.data();
    one.second_moment = of.second_moment_.data();
    one.stack = of.sides_.left.on() && of.sides_.right.on() ? moves : scratch;
    matrices.push_back(one);
    sides.push_back(&of.sides_);
  }
  batch_ = make_flat_batch<Space>(std::move(matrices));
  groups_ = TwoSidedGroups<Space>(batch_, std::move(sides));
}

template <class Space>
bool RotatedUpdates<Space>::in_step() const {
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (owner(i).started_ == 0 || owner(i).updates_ != owner(0).updates_) return false;
  return true;
}

// The order of steps is that of RotatedAdam::step.
template <class Space>
void RotatedUpdates<Space>::step(Stream<Space>& stream, const UpdateNumbers& shared) {
  if (!in_step()) return step_each(stream, shared, items_);
  {
    const auto frame = stream.workspace.frame();
    groups_.prepare(batch_, FlatScratch<Space>(stream.workspace, stacks, batch_.elements).stacks, stacks);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) ++owner(i).updates_;
  average_momenta<Space>(stream.exec, rule_.adam.beta1, shared.gradient_scale, batch_);
  if (rule_.factors_first) {
    update_factors(stream, shared.gradient_scale);
    refresh(stream);
  }
  update_weights(stream, shared);
  if (!rule_.factors_first) {
    update_factors(stream, shared.gradient_scale);
    refresh(stream);
  }
}

template <class Space>
void RotatedUpdates<Space>::update_factors(Stream<Space>& stream, double gradient_scale) const {
  if (rule_.from_momentum) return;
  const ProductPrecision<Space> precision(stream.gemm, rule_.precision);
  groups_.accumulate(stream.gemm, rule_.factor_beta, (1 - rule_.factor_beta) * (gradient_scale * gradient_scale));
}

template <class Space>
void RotatedUpdates<Space>::refresh(Stream<Space>& stream) {
  const auto all = [&] {
    for (std::size_t i = 0; i < items_.size(); ++i) owner(i).refresh(stream, owner(i).refresh_is_due(stream));
  };
  // Factors of the momentum lie in scratch, and drift is measured in the new basis.
  if (rule_.from_momentum || owner(0).sides_.by_drift())
    all();
  else
    refreshes_.collect(stream, all);
}

template <class Space>
void RotatedUpdates<Space>::update_weights(Stream<Space>& stream, const UpdateNumbers& shared) {
  const auto frame = stream.workspace.frame();
  const FlatStacks places = FlatScratch<Space>(stream.workspace, stacks, batch_.elements).stacks;
  const ProductPrecision<Space> precision(stream.gemm, rule_.precision);
  for (const auto& group : groups_.groups()) {
    groups_.rotate(stream.gemm, group, static_cast<float>(shared.gradient_scale), groups_.read(group.gradient), scratch,
                   rotated);
    groups_.rotate(stream.gemm, group, 1, groups_.read(group.momentum), scratch, moves);
  }
  rotated_adam<Space>(stream.exec, rule_.adam, batch_, places, rotated, moves);
  for (const auto& group : groups_.groups()) groups_.rotate_back(stream.gemm, group, moves, scratch);
  move_weights<Space>(stream.exec, owner(0).weight_move(stream, shared), batch_, places);
}

#define SESTINA_ROTATED_UPDATES(Space) template class RotatedUpdates<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_UPDATES)

}  // namespace sestina

#include "core/optimizer/methods/kl/kl_updates.hpp"

#include <utility>

namespace sestina {

// Memory of an update: of a batch the sum over its matrices.
template <class Space>
struct KlUpdates<Space>::Scratch {
  Scratch(Workspace<Space>& workspace, std::size_t elements, std::size_t lines)
      : places(FlatScratch<Space>(workspace, stacks, elements).stacks), roots(workspace.template take<float>(lines)) {}
  FlatStacks places;
  Vector<float, Space> roots;  // of all eigenvalues
};

template <class Space>
bool KlUpdates<Space>::declare_in_batch(Workspace<Space>& workspace, const MatrixOptions& options, const KlRule& rule,
                                        std::size_t rows, std::size_t cols) {
  if (!may_be_grouped(fields_of(options, rows, cols), rule.matmul_precision, rows, cols)) return false;
  declare<Scratch>(workspace, FlatStacks::aligned(rows * cols), FlatStacks::aligned(rows + cols));
  return true;
}

template <class Space>
KlUpdates<Space>::KlUpdates(const KlRule& rule, std::optional<double> beta2, const std::vector<BatchItem<Space>>& items)
    : rule_(rule), beta2_(beta2), items_(items) {
  std::vector<FlatMatrix> matrices;
  std::vector<const TwoSided<Space>*> two_sided;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    KlMethod<Space>& of = owner(i);
    FlatMatrix one = flat_matrix(items_[i]);
    one.momentum = of.momentum_.data();
    one.second_moment = of.second_moment().data();
    one.stack = rotated;
    matrices.push_back(one);
    two_sided.push_back(&of.factors_.sides());
  }
  batch_ = make_flat_batch<Space>(std::move(matrices));
  groups_ = TwoSidedGroups<Space>(batch_, std::move(two_sided));
  std::vector<FlatSide> sides;
  for (std::size_t i = 0; i < items_.size(); ++i)
    for (const bool left : {true, false}) {
      const Vector<float, Space> values = owner(i).factors_.eigenvalues(left);
      sides.push_back({batch_.matrices[i], left, values.data(), rule_.ceiling(values.extent(0))});
    }
  sides_ = make_flat_sides<Space>(std::move(sides));
}

// The order of steps is that of KlMethod::step.
template <class Space>
void KlUpdates<Space>::step(Stream<Space>& stream, const UpdateNumbers& shared) {
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (owner(i).started_ == 0) return step_each(stream, shared, items_);
  {
    const auto frame = stream.workspace.frame();
    const Scratch scratch(stream.workspace, batch_.elements, batch_.lines);
    groups_.prepare(batch_, scratch.places, stacks);
    const ProductPrecision<Space> precision(stream.gemm, rule_.matmul_precision);
    inverse_square_roots<Space>(stream.exec, sides_, scratch.roots);
    if (beta2_)
      update_with_second_moments(stream, shared, scratch);
    else
      update(stream, shared, scratch);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    ++owner(i).updates_;
    owner(i).refresh(stream);
  }
}

// As KlShampoo::update.
template <class Space>
void KlUpdates<Space>::update(Stream<Space>& stream, const UpdateNumbers& shared, const Scratch& scratch) {
  rotate_momenta(stream, shared.gradient_scale);
  scale_damped<Space>(stream.exec, rule_.eps, batch_, scratch.places, rotated, scratch.roots);
  move(stream, shared, scratch);
  rotate_gradients(stream, shared.gradient_scale);
  accumulate(stream, shared.gradient_scale, scratch);
}

// As KlSoap::update.
template <class Space>
void KlUpdates<Space>::update_with_second_moments(Stream<Space>& stream, const UpdateNumbers& shared,
                                                  const Scratch& scratch) {
  rotate_gradients(stream, shared.gradient_scale);
  average_squares<Space>(stream.exec, *beta2_, batch_, scratch.places, rotated);
  accumulate(stream, shared.gradient_scale, scratch);
  rotate_momenta(stream, shared.gradient_scale);
  divide_by_root<Space>(stream.exec, rule_.eps, batch_, scratch.places, rotated);
  move(stream, shared, scratch);
}

template <class Space>
void KlUpdates<Space>::rotate_gradients(Stream<Space>& stream, double gradient_scale) const {
  for (const auto& group : groups_.groups())
    groups_.rotate(stream.gemm, group, static_cast<float>(gradient_scale), groups_.read(group.gradient), half, rotated);
}

template <class Space>
void KlUpdates<Space>::rotate_momenta(Stream<Space>& stream, double gradient_scale) const {
  average_momenta<Space>(stream.exec, rule_.beta1, gradient_scale, batch_);
  for (const auto& group : groups_.groups())
    groups_.rotate(stream.gemm, group, 1, groups_.read(group.momentum), half, rotated);
}

// As KlFactors::accumulate.
template <class Space>
void KlUpdates<Space>::accumulate(Stream<Space>& stream, double gradient_scale, const Scratch& scratch) const {
  const double beta = rule_.factor_beta;
  const auto keep = static_cast<float>(beta), scale = static_cast<float>(gradient_scale);
  average_eigenvalues<Space>(stream.exec, beta, sides_, scratch.places, rotated, scratch.roots);
  const auto add_squares = [&](Op op, std::size_t factor, std::size_t other_side, const auto& group) {
    const auto add = static_cast<float>((1 - beta) / static_cast<double>(other_side));
    stream.gemm.template symmetric<float, float>(op, add, groups_.stack(group, half).read(), keep,
                                                 groups_.written(factor));
  };
  scale_lines<Space>(stream.exec, false, batch_, scratch.places, half, scratch.roots);
  for (const auto& group : groups_.groups()) {
    add_squares(Op::none, group.left_factor, group.cols, group);
    stream.gemm.template batch<float, float>(Op::transpose, Op::none, scale, groups_.read(group.left_basis),
                                             groups_.read(group.gradient), 0, groups_.stack(group, half));
  }
  scale_lines<Space>(stream.exec, true, batch_, scratch.places, half, scratch.roots);
  for (const auto& group : groups_.groups()) add_squares(Op::transpose, group.right_factor, group.rows, group);
}

template <class Space>
void KlUpdates<Space>::move(Stream<Space>& stream, const UpdateNumbers& shared, const Scratch& scratch) const {
  for (const auto& group : groups_.groups()) groups_.rotate_back(stream.gemm, group, rotated, half);
  move_weights<Space>(stream.exec,
                      {shared.lr, 1, shared.weight_decay, rule_.decay_order == Order::before, stream.nonfinite}, batch_,
                      scratch.places);
}

#define SESTINA_KL_UPDATES(Space) template class KlUpdates<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_KL_UPDATES)

}  // namespace sestina

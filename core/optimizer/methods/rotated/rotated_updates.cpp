#include "core/optimizer/methods/rotated/rotated_updates.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace sestina {
namespace {

// From this side on a device computes symmetric products in tiles, and a matrix keeps it busy by itself.
constexpr std::size_t unbatched_rotation = 8192;

// Sets the precision of products while it lives.
template <class Space>
struct RotationPrecision {
  RotationPrecision(Gemm<Space>& products, MatmulPrecision precision) : gemm(products) {
    gemm.round_to_tf32(precision == MatmulPrecision::tf32);
  }
  ~RotationPrecision() { gemm.round_to_tf32(false); }
  RotationPrecision(const RotationPrecision&) = delete;
  RotationPrecision& operator=(const RotationPrecision&) = delete;
  Gemm<Space>& gemm;
};

}  // namespace

// What needs a number of each matrix in the space, a pass that depends on when its basis was new, or operands in bf16
// is left to single updates; so is state that a pager may take away.
template <class Space>
bool RotatedUpdates<Space>::declare_in_batch(Workspace<Space>& workspace, const MatrixOptions& options,
                                             const RotatedAdamRule& rule, std::size_t rows, std::size_t cols) {
  if (rule.normalize || rule.keep_rotated || rule.factor_bias_correction) return false;
  if (rule.precision == MatmulPrecision::bf16 || rows * cols == 0) return false;
  if (std::max(rows, cols) >= unbatched_rotation) return false;
  for (const FieldSize& field : fields_of(options, rows, cols))
    if (field.tier != Tier::device) return false;
  declare<RotatedBatchScratch<Space>>(workspace, RotatedStacks::aligned(rows * cols));
  return true;
}

template <class Space>
RotatedUpdates<Space>::RotatedUpdates(const RotatedAdamRule& rule, const std::vector<BatchItem<Space>>& items)
    : rule_(rule), items_(items) {
  const auto shape_of = [&](std::size_t i) {
    const RotatedAdam<Space>& of = owner(i);
    return std::tuple(of.shape_.rows, of.shape_.cols, of.sides_.left.on(), of.sides_.right.on());
  };
  std::vector<RotatedMatrix> matrices;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const OwnedMatrix<Space>& matrix = items_[i].matrix;
    const RotatedAdam<Space>& of = owner(i);
    RotatedMatrix one;
    one.gradient = matrix.gradient.data();
    one.momentum = of.momentum_.data();
    one.second_moment = of.second_moment_.data();
    one.master = matrix.master.data();
    one.weight = matrix.weight.data();
    one.lr = items_[i].rates.lr;
    one.weight_decay = items_[i].rates.weight_decay;
    one.elements = matrix.master.size();
    one.in_scratch = !of.sides_.left.on() || !of.sides_.right.on();
    matrices.push_back(one);
    const auto found = std::find_if(stacks_.begin(), stacks_.end(),
                                    [&](const Stack& stack) { return shape_of(stack.items.front()) == shape_of(i); });
    Stack& stack = found == stacks_.end() ? stacks_.emplace_back() : *found;
    stack.items.push_back(i);
    stack.left = of.sides_.left.on();
    stack.right = of.sides_.right.on();
  }
  batch_ = make_rotated_batch<Space>(std::move(matrices));
}

// The state of the matrices stays where it is, and so does the stream's workspace.
template <class Space>
void RotatedUpdates<Space>::make_lists(const RotatedStacks& stacks) {
  read_ = {};
  written_ = {};
  for (Stack& stack : stacks_) {
    const std::size_t m = owner(stack.items.front()).shape_.rows, n = owner(stack.items.front()).shape_.cols;
    const auto list = [&](auto& table, std::size_t rows, std::size_t cols, const auto& pointer_of) {
      std::vector<std::decay_t<decltype(pointer_of(0))>> pointers;
      for (const std::size_t i : stack.items) pointers.push_back(pointer_of(i));
      return table.add(pointers, rows, cols);
    };
    const auto factor_of = [&](std::size_t i, bool left) {
      const TwoSided<Space>& sides = owner(i).sides_;
      const auto factor = (left ? sides.left : sides.right).factor.write();
      return factor.view().data();
    };
    stack.gradient = list(read_, m, n, [&](std::size_t i) { return batch_.matrices[i].gradient; });
    stack.momentum = list(read_, m, n, [&](std::size_t i) -> const float* { return batch_.matrices[i].momentum; });
    if (stack.left)
      stack.left_basis = list(read_, m, m, [&](std::size_t i) { return owner(i).sides_.left.basis.read().data(); });
    if (stack.right)
      stack.right_basis = list(read_, n, n, [&](std::size_t i) { return owner(i).sides_.right.basis.read().data(); });
    const bool factors = !rule_.from_momentum;
    if (factors && stack.left)
      stack.left_factor = list(written_, m, m, [&](std::size_t i) { return factor_of(i, true); });
    if (factors && stack.right)
      stack.right_factor = list(written_, n, n, [&](std::size_t i) { return factor_of(i, false); });
    const auto place = [&](float* of_all) {
      return list(written_, m, n, [&](std::size_t i) { return of_all + batch_.matrices[i].place; });
    };
    stack.scratch = place(stacks.scratch);
    stack.rotated = place(stacks.rotated());
    stack.move = place(stacks.move());
  }
  read_.finish("sestina::operands");
  written_.finish("sestina::results");
  scratch_ = stacks.scratch;
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
  if (!in_step()) {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const BatchItem<Space>& item = items_[i];
      owner(i).step(stream, with_rates(shared, item.rates), item.matrix);
    }
    return;
  }
  {
    const auto frame = stream.workspace.frame();
    const RotatedBatchScratch<Space> scratch(stream.workspace, batch_.elements);
    if (scratch_ != scratch.stacks.scratch) make_lists(scratch.stacks);
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
  const RotationPrecision<Space> precision(stream.gemm, rule_.precision);
  const auto alpha = static_cast<float>((1 - rule_.factor_beta) * (gradient_scale * gradient_scale)),
             beta = static_cast<float>(rule_.factor_beta);
  for (const Stack& stack : stacks_) {
    const MatrixList<const float, Space> g = read_[stack.gradient];
    Gemm<Space>& gemm = stream.gemm;
    if (stack.left) gemm.template symmetric<float, float>(Op::none, alpha, g, beta, written_[stack.left_factor]);
    if (stack.right) gemm.template symmetric<float, float>(Op::transpose, alpha, g, beta, written_[stack.right_factor]);
  }
}

template <class Space>
void RotatedUpdates<Space>::refresh(Stream<Space>& stream) {
  for (std::size_t i = 0; i < items_.size(); ++i) owner(i).refresh(stream, owner(i).refresh_is_due(stream));
}

template <class Space>
void RotatedUpdates<Space>::rotate(Gemm<Space>& gemm, const Stack& on, float alpha, std::size_t x,
                                   std::size_t to) const {
  constexpr Op none = Op::none, turned = Op::transpose;
  const MatrixList<float, Space> out = written_[to], half = on.left ? written_[on.scratch] : out;
  if (on.right) gemm.template batch<float, float>(none, none, alpha, read_[x], read_[on.right_basis], 0, half);
  if (!on.left) return;
  const MatrixList<const float, Space> from = on.right ? half.read() : read_[x];
  gemm.template batch<float, float>(turned, none, on.right ? 1 : alpha, read_[on.left_basis], from, 0, out);
}

template <class Space>
void RotatedUpdates<Space>::rotate_back(Gemm<Space>& gemm, const Stack& on) const {
  constexpr Op none = Op::none, turned = Op::transpose;
  MatrixList<float, Space> d = written_[on.move], to = written_[on.scratch];
  if (on.right) {
    gemm.template batch<float, float>(none, turned, 1, d.read(), read_[on.right_basis], 0, to);
    std::swap(d, to);
  }
  if (on.left) gemm.template batch<float, float>(none, none, 1, read_[on.left_basis], d.read(), 0, to);
}

template <class Space>
void RotatedUpdates<Space>::update_weights(Stream<Space>& stream, const UpdateNumbers& shared) {
  const auto frame = stream.workspace.frame();
  const RotatedStacks stacks = RotatedBatchScratch<Space>(stream.workspace, batch_.elements).stacks;
  const RotationPrecision<Space> precision(stream.gemm, rule_.precision);
  for (const Stack& stack : stacks_) {
    rotate(stream.gemm, stack, static_cast<float>(shared.gradient_scale), stack.gradient, stack.rotated);
    rotate(stream.gemm, stack, 1, stack.momentum, stack.move);
  }
  rotated_adam<Space>(stream.exec, rule_.adam, batch_, stacks);
  for (const Stack& stack : stacks_) rotate_back(stream.gemm, stack);
  move_weights<Space>(stream.exec, owner(0).weight_move(stream, shared), batch_, stacks);
}

#define SESTINA_ROTATED_UPDATES(Space) template class RotatedUpdates<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_UPDATES)

}  // namespace sestina

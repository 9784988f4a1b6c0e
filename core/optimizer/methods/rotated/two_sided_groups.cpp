#include "core/optimizer/methods/rotated/two_sided_groups.hpp"

#include <tuple>
#include <utility>

namespace sestina {

template <class Space>
TwoSidedGroups<Space>::TwoSidedGroups(const FlatBatch<Space>& batch, std::vector<const TwoSided<Space>*> sides)
    : sides_(std::move(sides)) {
  const auto shape_of = [&](std::size_t i) {
    return std::tuple(batch.matrices[i].rows, batch.matrices[i].cols, sides_[i]->left.on(), sides_[i]->right.on());
  };
  for (std::vector<std::size_t>& matrices : groups_by(sides_.size(), shape_of)) {
    const auto [rows, cols, left, right] = shape_of(matrices.front());
    groups_.push_back({rows, cols, left, right, std::move(matrices)});
  }
}

template <class Space>
bool TwoSidedGroups<Space>::prepare(const FlatBatch<Space>& batch, const FlatStacks& stacks, std::size_t count) {
  if (made_for_ == stacks.values) return false;
  read_ = {};
  written_ = {};
  for (Group& group : groups_) {
    const std::size_t m = group.rows, n = group.cols;
    const auto side_of = [&](std::size_t i, bool left) -> const Side<Space>& {
      return left ? sides_[i]->left : sides_[i]->right;
    };
    const auto basis = [&](bool left, std::size_t d) {
      return read_.add_each(
          group.matrices, [&](std::size_t i) { return side_of(i, left).basis.read().data(); }, d, d);
    };
    const auto factor = [&](bool left, std::size_t d) {
      const auto data = [&](std::size_t i) {
        const auto kept = side_of(i, left).factor.write();
        return kept.view().data();
      };
      return written_.add_each(group.matrices, data, d, d);
    };
    const std::size_t first = group.matrices.front();
    const bool factors = sides_[first]->left.factor.size() > 0 || sides_[first]->right.factor.size() > 0;
    const auto array = [&](auto FlatMatrix::*of) {
      return read_.add_each(
          group.matrices, [&](std::size_t i) -> const float* { return batch.matrices[i].*of; }, m, n);
    };
    group.gradient = array(&FlatMatrix::gradient);
    group.momentum = array(&FlatMatrix::momentum);
    if (group.left) group.left_basis = basis(true, m);
    if (group.right) group.right_basis = basis(false, n);
    if (group.left && factors) group.left_factor = factor(true, m);
    if (group.right && factors) group.right_factor = factor(false, n);
    for (std::size_t s = 0; s < count; ++s) {
      const auto place = [&](std::size_t i) { return stacks[s] + batch.matrices[i].place; };
      const std::size_t added = written_.add_each(group.matrices, place, m, n);
      if (s == 0) group.first_stack = added;
    }
  }
  read_.finish("sestina::operands");
  written_.finish("sestina::results");
  made_for_ = stacks.values;
  return true;
}

template <class Space>
void TwoSidedGroups<Space>::rotate(Gemm<Space>& gemm, const Group& on, float alpha,
                                   const MatrixList<const float, Space>& x, std::size_t half, std::size_t out) const {
  constexpr Op none = Op::none, turned = Op::transpose;
  const MatrixList<float, Space> to = stack(on, out), between = on.left ? stack(on, half) : to;
  if (on.right) gemm.template batch<float, float>(none, none, alpha, x, read_[on.right_basis], 0, between);
  if (!on.left) return;
  const MatrixList<const float, Space> from = on.right ? between.read() : x;
  gemm.template batch<float, float>(turned, none, on.right ? 1 : alpha, read_[on.left_basis], from, 0, to);
}

template <class Space>
void TwoSidedGroups<Space>::rotate_back(Gemm<Space>& gemm, const Group& on, std::size_t d, std::size_t other) const {
  constexpr Op none = Op::none, turned = Op::transpose;
  MatrixList<float, Space> from = stack(on, d), to = stack(on, other);
  if (on.right) {
    gemm.template batch<float, float>(none, turned, 1, from.read(), read_[on.right_basis], 0, to);
    std::swap(from, to);
  }
  if (on.left) gemm.template batch<float, float>(none, none, 1, read_[on.left_basis], from.read(), 0, to);
}

template <class Space>
void TwoSidedGroups<Space>::accumulate(Gemm<Space>& gemm, double keep, double add) const {
  const auto alpha = static_cast<float>(add), beta = static_cast<float>(keep);
  for (const Group& group : groups_) {
    const MatrixList<const float, Space> g = read_[group.gradient];
    const auto symmetric = [&](Op op, std::size_t factor) {
      gemm.template symmetric<float, float>(op, alpha, g, beta, written_[factor]);
    };
    if (group.left) symmetric(Op::none, group.left_factor);
    if (group.right) symmetric(Op::transpose, group.right_factor);
  }
}

#define SESTINA_TWO_SIDED_GROUPS(Space) template class TwoSidedGroups<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_TWO_SIDED_GROUPS)

}  // namespace sestina

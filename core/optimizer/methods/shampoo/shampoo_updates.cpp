#include "core/optimizer/methods/shampoo/shampoo_updates.hpp"

#include <tuple>
#include <utility>

#include "core/optimizer/methods/two_sided.hpp"

namespace sestina {

// Memory of an update: of a batch at most the sum over its matrices.
template <class Space>
struct ShampooUpdates<Space>::Scratch {
  Scratch(Workspace<Space>& workspace, std::size_t elements, std::size_t pieces, std::size_t blocks)
      : places(FlatScratch<Space>(workspace, stacks, elements).stacks), graft(workspace, pieces, blocks) {}
  FlatStacks places;
  GraftScratch<Space> graft;
};

// Packed factors, which are unpacked one by one, and vectors are left to single updates.
template <class Space>
bool ShampooUpdates<Space>::declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options,
                                            bool /*computes_bf16*/, std::size_t rows, std::size_t cols) {
  const ShampooRule rule(options);
  const ShampooLayout layout = shampoo_layout(rule, rows, cols);
  if (rule.packed || layout.is_vector || layout.blocks.empty()) return false;
  const ShampooBlock& largest = layout.blocks.front();
  if (!may_be_grouped(fields_of(options, rows, cols), rule.matmul_precision, largest.rows, largest.cols)) return false;
  std::size_t elements = 0, pieces = 0;
  for (const ShampooBlock& block : layout.blocks) {
    elements += FlatStacks::aligned(block.rows * block.cols);
    pieces += chunk_count(block.rows * block.cols);
  }
  declare<Scratch>(workspace, elements, pieces, layout.blocks.size());
  return true;
}

template <class Space>
ShampooUpdates<Space>::ShampooUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
    : rule_(options), items_(items) {
  std::vector<FlatMatrix> blocks;
  for (std::size_t i = 0; i < items_.size(); ++i) add_blocks(i, blocks);
  batch_ = make_flat_batch<Space>(std::move(blocks));
  make_groups();
}

template <class Space>
void ShampooUpdates<Space>::add_blocks(std::size_t item, std::vector<FlatMatrix>& blocks) {
  const Shampoo<Space>& of = owner(item);
  FlatMatrix whole = flat_matrix(items_[item]);
  whole.momentum = of.state_.matrix("momentum").data();
  if (rule_.grafts_by_moment()) whole.second_moment = of.state_.matrix("second_moment").data();
  whole.stack = filtered;
  for (std::size_t number = 0; number < of.layout_.blocks.size(); ++number) {
    const ShampooBlock& block = of.layout_.blocks[number];
    blocks.push_back(block_of(whole, block.row, block.col, block.rows, block.cols));
    blocks_.push_back({item, number});
  }
}

template <class Space>
void ShampooUpdates<Space>::make_groups() {
  const auto shape_of = [&](std::size_t i) {
    const FlatMatrix& block = batch_.matrices[i];
    return std::tuple(block.rows, block.cols, block.apart);
  };
  for (std::vector<std::size_t>& blocks : groups_by(batch_.matrices.size(), shape_of)) {
    const auto [rows, cols, apart] = shape_of(blocks.front());
    groups_.push_back({rows, cols, apart, std::move(blocks)});
  }
}

template <class Space>
const ShampooSide<Space>& ShampooUpdates<Space>::side(std::size_t block, bool left) const {
  return owner(blocks_[block].item).sides_[2 * blocks_[block].number + (left ? 0 : 1)];
}

// State stays where it is, and so does a stream's workspace.
template <class Space>
void ShampooUpdates<Space>::make_lists(const FlatStacks& places) {
  read_ = {};
  written_ = {};
  for (Group& group : groups_) {
    const std::size_t m = group.rows, n = group.cols;
    const auto root = [&](bool left, std::size_t d) {
      return read_.add_each(
          group.blocks, [&](std::size_t block) { return side(block, left).root.read().data(); }, d, d);
    };
    const auto factor = [&](bool left, std::size_t d) {
      const auto data = [&](std::size_t block) {
        const auto kept = side(block, left).factor.write();
        return kept.view().data();
      };
      return written_.add_each(group.blocks, data, d, d);
    };
    const auto stack = [&](std::size_t number) {
      const auto place = [&](std::size_t block) { return places[number] + batch_.matrices[block].place; };
      return written_.add_each(group.blocks, place, m, n);
    };
    const auto gradient = [&](std::size_t block) { return batch_.matrices[block].gradient; };
    group.gradient = read_.add_each(group.blocks, gradient, m, n, group.apart);
    group.left_root = root(true, m);
    group.right_root = root(false, n);
    group.left_factor = factor(true, m);
    group.right_factor = factor(false, n);
    group.filtered = stack(filtered);
    group.other = stack(other);
  }
  read_.finish("sestina::operands");
  written_.finish("sestina::results");
  made_for_ = places.values;
}

// Roots are the identity before the first refresh, and the direction is the graft's then.
template <class Space>
bool ShampooUpdates<Space>::in_step() const {
  const auto updates = [&](std::size_t i) { return owner(i).state_.counter("updates"); };
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (updates(i) == 0 || updates(i) + 1 < rule_.start || updates(i) != updates(0)) return false;
  return true;
}

// The order of steps is that of Shampoo::step.
template <class Space>
void ShampooUpdates<Space>::step(Stream<Space>& stream, const UpdateNumbers& shared) {
  if (!in_step()) return step_each(stream, shared, items_);
  std::int64_t t = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) t = ++owner(i).state_.counter("updates");
  const auto make_scratch = [&] {
    return Scratch(stream.workspace, batch_.elements, batch_.pieces, batch_.matrices.size());
  };
  {
    const auto frame = stream.workspace.frame();
    const Scratch scratch = make_scratch();
    if (made_for_ != scratch.places.values) make_lists(scratch.places);
  }
  update_factors(stream, shared.gradient_scale);
  refresh(stream, t);
  const auto frame = stream.workspace.frame();
  update_weights(stream, t, shared, make_scratch());
}

template <class Space>
void ShampooUpdates<Space>::update_factors(Stream<Space>& stream, double gradient_scale) const {
  const ProductPrecision<Space> precision(stream.gemm, rule_.matmul_precision);
  const auto add = static_cast<float>(rule_.gain(gradient_scale)), keep = static_cast<float>(rule_.beta2);
  for (const Group& group : groups_) {
    const MatrixList<const float, Space> g = read_[group.gradient];
    stream.gemm.template symmetric<float, float>(Op::none, add, g, keep, written_[group.left_factor]);
    stream.gemm.template symmetric<float, float>(Op::transpose, add, g, keep, written_[group.right_factor]);
  }
}

template <class Space>
void ShampooUpdates<Space>::refresh(Stream<Space>& stream, std::int64_t t) {
  refreshes_.collect(stream, [&] {
    for (std::size_t i = 0; i < items_.size(); ++i)
      for (std::size_t number = 0; number < owner(i).sides_.size(); ++number)
        owner(i).refresh_side(stream, number, t, owner(i).sides_[number].factor.read());
  });
}

template <class Space>
void ShampooUpdates<Space>::update_weights(Stream<Space>& stream, std::int64_t t, const UpdateNumbers& shared,
                                           const Scratch& scratch) const {
  const FilterRule rule = rule_.filter(t, shared.gradient_scale);
  const FlatStacks& places = scratch.places;
  filter<Space>(stream.exec, rule, batch_, places, filtered, other);
  const bool grafts = rule_.grafts();
  if (grafts)
    squares_of_stack<Space>(stream.exec, batch_, places, rule.second_moment ? other : filtered, scratch.graft.graft);
  const ProductPrecision<Space> precision(stream.gemm, rule_.matmul_precision);
  for (const Group& group : groups_) {
    const MatrixList<float, Space> f = written_[group.filtered], half = written_[group.other];
    constexpr Op none = Op::none;
    stream.gemm.template batch<float, float>(none, none, 1, read_[group.left_root], f.read(), 0, half);
    stream.gemm.template batch<float, float>(none, none, 1, half.read(), read_[group.right_root], 0, f);
  }
  Vector<const double, Space> factors;
  if (grafts) {
    squares_of_stack<Space>(stream.exec, batch_, places, filtered, scratch.graft.direction);
    make_graft_factors<Space>(stream.exec, batch_, scratch.graft);
    factors = scratch.graft.factors;
  }
  move_weights<Space>(stream.exec,
                      {shared.lr, 1, shared.weight_decay, rule_.decay_order == Order::before, stream.nonfinite}, batch_,
                      places, factors);
}

#define SESTINA_SHAMPOO_UPDATES(Space) template class ShampooUpdates<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_SHAMPOO_UPDATES)

}  // namespace sestina

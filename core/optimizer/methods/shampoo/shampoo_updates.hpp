// Updates of many matrices by Shampoo together (core/optimizer/base/update_batches.hpp): an element-wise pass is one
// launch for all of their blocks (kernels/optimizer/batch/shampoo_batch.hpp), a product one call for all blocks of one
// shape. Refreshes stay those of single matrices, but for decompositions
// (refresh_batch.hpp), as few updates have one.
//
// Matrices are updated together in an update for which all of them have roots and have made the same number of updates;
// in any other, each goes alone.
#pragma once
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/shampoo/shampoo_matrix.hpp"
#include "core/optimizer/refresh/refresh_batch.hpp"

namespace sestina {

template <class Space>
class ShampooUpdates final : public UpdateBatch<Space> {
 public:
  ShampooUpdates(const MatrixOptions&, const std::vector<BatchItem<Space>>&);

  void step(Stream<Space>&, const UpdateNumbers&) override;
  // Takes what a matrix adds to the scratch of a batch; false: it goes alone.
  static bool declare_scratch(Workspace<Space>&, const MatrixOptions&, bool computes_bf16, std::size_t rows,
                              std::size_t cols);

 private:
  enum Stacks : std::size_t { filtered, other, stacks };  // the averaged gradients; grafts, and products with one root
  struct Scratch;
  struct Block {
    std::size_t item = 0, number = 0;  // number: in its matrix
  };
  // The operands of the products of blocks of one shape whose rows lie as far apart, as numbers of lists.
  struct Group {
    std::size_t rows = 0, cols = 0, apart = 0;
    std::vector<std::size_t> blocks;
    std::size_t gradient = 0, left_root = 0, right_root = 0;                 // of read_
    std::size_t left_factor = 0, right_factor = 0, filtered = 0, other = 0;  // of written_
  };

  Shampoo<Space>& owner(std::size_t item) const { return static_cast<Shampoo<Space>&>(*items_[item].optimizer); }
  const ShampooSide<Space>& side(std::size_t block, bool left) const;
  void add_blocks(std::size_t item, std::vector<FlatMatrix>&);
  void make_groups();
  bool in_step() const;
  void make_lists(const FlatStacks&);
  void update_factors(Stream<Space>&, double gradient_scale) const;
  void refresh(Stream<Space>&, std::int64_t t);
  void update_weights(Stream<Space>&, std::int64_t t, const UpdateNumbers& shared, const Scratch&) const;

  ShampooRule rule_;
  std::vector<BatchItem<Space>> items_;
  std::vector<Block> blocks_;
  std::vector<Group> groups_;
  FlatBatch<Space> batch_;  // of blocks
  RefreshBatch<Space> refreshes_;
  MatrixTable<const float, Space> read_;
  MatrixTable<float, Space> written_;
  const float* made_for_ = nullptr;  // the stacks of the lists; null: there are none yet
};

}  // namespace sestina

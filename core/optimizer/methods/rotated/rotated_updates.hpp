// Updates of many matrices in rotated bases together (core/optimizer/base/update_batches.hpp): an element-wise pass is
// one launch for all of them (kernels/optimizer/batch/rotated_batch.hpp), a product one call for all of one shape
// (two_sided_groups.hpp). Refreshes stay those of single matrices, but for decompositions
// (refresh_batch.hpp), as few updates have one.
//
// Matrices are updated together in an update for which all of them have bases and have made the same number of updates;
// in any other, the first one and those after a gradient of zeros or a state that began again, each goes alone.
#pragma once
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "core/optimizer/methods/rotated/two_sided_groups.hpp"
#include "core/optimizer/refresh/refresh_batch.hpp"

namespace sestina {

template <class Space>
class RotatedUpdates : public UpdateBatch<Space> {
 public:
  // The rule is that of all matrices but for their periods of refreshes.
  RotatedUpdates(const RotatedAdamRule&, const std::vector<BatchItem<Space>>&);

  void step(Stream<Space>&, const UpdateNumbers&) override;
  // Takes what a matrix adds to the scratch of a batch; false: it goes alone.
  static bool declare_in_batch(Workspace<Space>&, const MatrixOptions&, const RotatedAdamRule&, std::size_t rows,
                               std::size_t cols);

 private:
  enum Stacks : std::size_t { scratch, rotated, moves, stacks };  // the gradient and the momentum in the basis

  RotatedAdam<Space>& owner(std::size_t i) const { return static_cast<RotatedAdam<Space>&>(*items_[i].optimizer); }
  bool in_step() const;
  void update_factors(Stream<Space>&, double gradient_scale) const;
  void refresh(Stream<Space>&);
  void update_weights(Stream<Space>&, const UpdateNumbers& shared);

  RotatedAdamRule rule_;
  std::vector<BatchItem<Space>> items_;
  FlatBatch<Space> batch_;
  RefreshBatch<Space> refreshes_;
  TwoSidedGroups<Space> groups_;
};

}  // namespace sestina

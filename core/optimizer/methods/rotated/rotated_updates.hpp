// Updates of many matrices in rotated bases together (core/optimizer/base/update_batches.hpp): an element-wise pass is
// one launch for all of them (kernels/optimizer/rotated/rotated_batch.hpp), a product one call for all of one shape
// (Gemm::batch). Their refreshes stay those of single matrices, as few updates have one.
//
// Matrices are updated together in an update for which all of them have bases and have made the same number of updates;
// in any other, the first one and those after a gradient of zeros or a state that began again, each goes alone.
#pragma once
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "kernels/optimizer/rotated/rotated_batch.hpp"

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
  // The operands of the products of matrices of one shape, as numbers of lists; those of a side that is off are 0.
  struct Stack {
    std::vector<std::size_t> items;
    bool left = false, right = false;
    std::size_t gradient = 0, momentum = 0, left_basis = 0, right_basis = 0;            // in read_
    std::size_t left_factor = 0, right_factor = 0, scratch = 0, rotated = 0, move = 0;  // in written_
  };

  RotatedAdam<Space>& owner(std::size_t i) const { return static_cast<RotatedAdam<Space>&>(*items_[i].optimizer); }
  bool in_step() const;
  void make_lists(const RotatedStacks&);
  void update_factors(Stream<Space>&, double gradient_scale) const;
  void refresh(Stream<Space>&);
  void update_weights(Stream<Space>&, const UpdateNumbers& shared);
  // Computes the list `to` = alpha Ql^T X Qr.
  void rotate(Gemm<Space>&, const Stack&, float alpha, std::size_t x, std::size_t to) const;
  // Computes Ql D Qr^T of what lies in `move`, into the pieces that the table names as directions.
  void rotate_back(Gemm<Space>&, const Stack&) const;

  RotatedAdamRule rule_;
  std::vector<BatchItem<Space>> items_;
  std::vector<Stack> stacks_;
  RotatedBatch<Space> batch_;
  MatrixTable<const float, Space> read_;
  MatrixTable<float, Space> written_;
  const float* scratch_ = nullptr;  // for which the lists are made; null: there are none yet
};

}  // namespace sestina

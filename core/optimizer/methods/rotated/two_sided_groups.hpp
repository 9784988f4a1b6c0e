// The products of many matrices with bases: those of one shape are a group, whose products are one call each
// (Gemm::batch). Results go to the stacks of a batch (kernels/optimizer/batch/flat_batch.hpp), which say where each
// matrix has its place.
#pragma once
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/two_sided.hpp"

namespace sestina {

template <class Space>
class TwoSidedGroups {
 public:
  // The matrices of one shape, with operands as numbers of lists; those of a side that is off are 0.
  struct Group {
    std::size_t rows = 0, cols = 0;
    bool left = false, right = false;
    std::vector<std::size_t> matrices;
    std::size_t gradient = 0, momentum = 0, left_basis = 0, right_basis = 0;  // of read()
    std::size_t left_factor = 0, right_factor = 0;                            // of written(), where there are factors
    std::size_t first_stack = 0;                                              // of written(), the others follow it
  };

  TwoSidedGroups() = default;
  // Matrix i of the batch has sides[i], which outlive this.
  TwoSidedGroups(const FlatBatch<Space>&, std::vector<const TwoSided<Space>*> sides);

  // Makes the lists for these stacks, unless they are those of the last call: state stays where it is, and so does a
  // stream's workspace. Fences then, and returns true.
  bool prepare(const FlatBatch<Space>&, const FlatStacks&, std::size_t count);

  const std::vector<Group>& groups() const { return groups_; }
  MatrixList<const float, Space> read(std::size_t list) const { return read_[list]; }
  MatrixList<float, Space> written(std::size_t list) const { return written_[list]; }
  MatrixList<float, Space> stack(const Group& group, std::size_t number) const {
    return written_[group.first_stack + number];
  }

  // Computes out = alpha Ql^T X Qr; half and out are stacks, of which X is none. Where both sides are on, half is
  // alpha X Qr.
  void rotate(Gemm<Space>&, const Group&, float alpha, const MatrixList<const float, Space>& x, std::size_t half,
              std::size_t out) const;
  // Computes Ql D Qr^T of stack d, which is used up; the result is in d where both sides are on, else in `other`.
  void rotate_back(Gemm<Space>&, const Group&, std::size_t d, std::size_t other) const;
  // TwoSided::accumulate of the gradients of all matrices.
  void accumulate(Gemm<Space>&, double keep, double add) const;

 private:
  std::vector<const TwoSided<Space>*> sides_;
  std::vector<Group> groups_;
  MatrixTable<const float, Space> read_;
  MatrixTable<float, Space> written_;
  const float* made_for_ = nullptr;  // null: there are no lists yet
};

}  // namespace sestina

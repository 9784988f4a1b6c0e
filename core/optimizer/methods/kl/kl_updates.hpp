// Updates of many matrices by KL-Shampoo or KL-SOAP together (core/optimizer/base/update_batches.hpp): an element-wise
// pass is one launch for all of them (kernels/optimizer/batch/rotated_batch.hpp), a product one call for all of one
// shape. Their refreshes stay those of single matrices, as few updates have one.
//
// Matrices are updated together in an update for which all of them have bases; in any other, each goes alone.
#pragma once
#include <optional>
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/kl/kl_factors.hpp"
#include "core/optimizer/methods/rotated/two_sided_groups.hpp"
#include "kernels/optimizer/batch/rotated_batch.hpp"

namespace sestina {

template <class Space>
class KlUpdates : public UpdateBatch<Space> {
 public:
  // The rule is that of all matrices. beta2: of KL-SOAP's second moments; none: KL-Shampoo.
  KlUpdates(const KlRule&, std::optional<double> beta2, const std::vector<BatchItem<Space>>&);

  void step(Stream<Space>&, const UpdateNumbers&) override;
  // Takes what a matrix adds to the scratch of a batch; false: it goes alone.
  static bool declare_in_batch(Workspace<Space>&, const MatrixOptions&, const KlRule&, std::size_t rows,
                               std::size_t cols);

 private:
  enum Stacks : std::size_t { half, rotated, stacks };  // of KlFactors::rotate
  struct Scratch;

  KlMethod<Space>& owner(std::size_t i) const { return static_cast<KlMethod<Space>&>(*items_[i].optimizer); }
  void update(Stream<Space>&, const UpdateNumbers& shared, const Scratch&);
  void update_with_second_moments(Stream<Space>&, const UpdateNumbers& shared, const Scratch&);
  void rotate_gradients(Stream<Space>&, double gradient_scale) const;
  void rotate_momenta(Stream<Space>&, double gradient_scale) const;
  void accumulate(Stream<Space>&, double gradient_scale, const Scratch&) const;
  void move(Stream<Space>&, const UpdateNumbers& shared, const Scratch&) const;

  KlRule rule_;
  std::optional<double> beta2_;
  std::vector<BatchItem<Space>> items_;
  FlatBatch<Space> batch_;
  FlatSides<Space> sides_;
  TwoSidedGroups<Space> groups_;
};

}  // namespace sestina

// Updates of many matrices by SOAP-Muon together (core/optimizer/base/update_batches.hpp): the direction is formed as
// those in rotated bases are (two_sided_groups.hpp), orthogonalised as Muon's are
// (kernels/optimizer/muon/muon_batch.hpp), each element-wise pass in one launch for all matrices. Their refreshes stay
// those of single matrices.
//
// Matrices are updated together in an update for which all of them have bases; in any other, each goes alone.
#pragma once
#include <vector>

#include "core/optimizer/base/update_batches.hpp"
#include "core/optimizer/methods/rotated/two_sided_groups.hpp"
#include "core/optimizer/methods/soap_muon/soap_muon_matrix.hpp"
#include "kernels/optimizer/muon/muon_batch.hpp"

namespace sestina {

template <class Space>
class SoapMuonUpdates final : public UpdateBatch<Space> {
 public:
  SoapMuonUpdates(const MatrixOptions&, const std::vector<BatchItem<Space>>&);

  void step(Stream<Space>&, const UpdateNumbers&) override;
  // Takes what a matrix adds to the scratch of a batch; false: it goes alone.
  static bool declare_scratch(Workspace<Space>&, const MatrixOptions&, bool computes_bf16, std::size_t rows,
                              std::size_t cols);

 private:
  enum Stacks : std::size_t { blended, half, rotated, stacks };  // u, and where it is rotated and back
  template <class T>
  struct Scratch;

  SoapMuon<Space>& owner(std::size_t i) const { return static_cast<SoapMuon<Space>&>(*items_[i].optimizer); }
  // Makes what refers to places in the stacks, unless they are those of the last call. Fences then.
  void prepare(const FlatStacks&);
  template <class T>
  void update_weights(Stream<Space>&, const UpdateNumbers& shared);
  template <class T>
  void whiten(Stream<Space>&, const MomentumStep&, const Scratch<T>&) const;

  SoapMuonOptions keys_;
  MuonRule rule_;
  bool in_bf16_;
  std::vector<BatchItem<Space>> items_;
  FlatBatch<Space> flat_;
  TwoSidedGroups<Space> groups_;
  MuonBatch<Space> momenta_, directions_;  // of the same matrices; directions take the place of momenta
};

}  // namespace sestina

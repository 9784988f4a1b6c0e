#include "core/optimizer/methods/soap_muon/soap_muon_updates.hpp"

#include <utility>

#include "core/optimizer/methods/batched_matrix.hpp"
#include "kernels/optimizer/batch/soap_muon_batch.hpp"

namespace sestina {

// Memory of an update: of a batch the sum over its matrices.
template <class Space>
template <class T>
struct SoapMuonUpdates<Space>::Scratch {
  Scratch(Workspace<Space>& workspace, const NewtonSchulz& ns, const BatchSizes& sizes, std::size_t elements)
      : places(FlatScratch<Space>(workspace, stacks, elements).stacks),
        norms(workspace, sizes.chunks, sizes.matrices),
        muon(workspace, ns, sizes) {}
  FlatStacks places;
  MatchNormsScratch<Space> norms;
  MuonBatchScratch<T, Space> muon;
};

template <class Space>
bool SoapMuonUpdates<Space>::declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options,
                                             bool computes_bf16, std::size_t rows, std::size_t cols) {
  const auto& o = options.as<SoapMuonOptions>();
  const MuonRule rule = muon_rule(o, rows, cols);
  const NewtonSchulz ns = rule.newton_schulz();
  if (!is_batched(ns, rows, cols) || !may_be_grouped(fields_of(options, rows, cols), o.matmul_precision, rows, cols))
    return false;
  const BatchSizes one = BatchSizes::of_one(rows, cols);
  if (rule.in_bf16(computes_bf16))
    declare<Scratch<bf16>>(workspace, ns, one, FlatStacks::aligned(rows * cols));
  else
    declare<Scratch<float>>(workspace, ns, one, FlatStacks::aligned(rows * cols));
  return true;
}

template <class Space>
SoapMuonUpdates<Space>::SoapMuonUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
    : keys_(options.as<SoapMuonOptions>()),
      rule_(muon_rule(keys_, items.front().matrix.rows(), items.front().matrix.cols())),
      in_bf16_(rule_.in_bf16(items.front().matrix.computes_bf16())),
      items_(items) {
  std::vector<FlatMatrix> matrices;
  std::vector<BatchedMatrix> batched;
  std::vector<const TwoSided<Space>*> sides;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const SoapMuon<Space>& of = owner(i);
    FlatMatrix one = flat_matrix(items_[i]);
    one.momentum = of.momentum_.data();
    one.second_moment = of.second_moment_.data();
    one.stack = of.sides_.left.on() && of.sides_.right.on() ? rotated : half;
    matrices.push_back(one);
    batched.push_back(batched_matrix(items_[i], of.momentum_.data(), of.rule_.scale));
    sides.push_back(&of.sides_);
  }
  flat_ = make_flat_batch<Space>(std::move(matrices));
  momenta_ = make_muon_batch<Space>(std::move(batched));
  groups_ = TwoSidedGroups<Space>(flat_, std::move(sides));
}

template <class Space>
void SoapMuonUpdates<Space>::prepare(const FlatStacks& places) {
  if (!groups_.prepare(flat_, places, stacks)) return;
  std::vector<BatchedMatrix> directions = momenta_.matrices;
  for (std::size_t i = 0; i < directions.size(); ++i)
    directions[i].momentum = places[flat_.matrices[i].stack] + flat_.matrices[i].place;
  directions_ = make_muon_batch<Space>(std::move(directions));
}

// The order of steps is that of SoapMuon::step.
template <class Space>
void SoapMuonUpdates<Space>::step(Stream<Space>& stream, const UpdateNumbers& shared) {
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (owner(i).started_ == 0) return step_each(stream, shared, items_);
  for (std::size_t i = 0; i < items_.size(); ++i) ++owner(i).updates_;
  if (in_bf16_)
    update_weights<bf16>(stream, shared);
  else
    update_weights<float>(stream, shared);
  {
    const ProductPrecision<Space> precision(stream.gemm, keys_.matmul_precision);
    const double beta = keys_.factor_beta;
    groups_.accumulate(stream.gemm, beta, (1 - beta) * shared.gradient_scale * shared.gradient_scale);
  }
  for (std::size_t i = 0; i < items_.size(); ++i) owner(i).refresh(stream);
}

template <class Space>
template <class T>
void SoapMuonUpdates<Space>::update_weights(Stream<Space>& stream, const UpdateNumbers& shared) {
  const auto frame = stream.workspace.frame();
  const NewtonSchulz ns = rule_.newton_schulz();
  const Scratch<T> scratch(stream.workspace, ns, momenta_.sizes, flat_.elements);
  prepare(scratch.places);
  const MomentumStep now = momentum_step(rule_.factors(shared.momentum), shared.gradient_scale);
  advance_momenta<Space>(stream.exec, now, momenta_, scratch.muon.squares);
  whiten<T>(stream, now, scratch);
  const MomentumStep as_they_are{.q = 1};
  const Vector<const T, Space> orthogonal =
      batched_newton_schulz<T>(stream.exec, stream.gemm, ns, as_they_are, directions_, scratch.muon);
  move_batch<T>(stream.exec, {shared.lr, 1, shared.weight_decay, true, stream.nonfinite}, momenta_, orthogonal);
}

// As SoapMuon::whitened.
template <class Space>
template <class T>
void SoapMuonUpdates<Space>::whiten(Stream<Space>& stream, const MomentumStep& now, const Scratch<T>& scratch) const {
  const ProductPrecision<Space> precision(stream.gemm, keys_.matmul_precision);
  form_blends<Space>(stream.exec, now, flat_, scratch.places, blended);
  for (const auto& group : groups_.groups())
    groups_.rotate(stream.gemm, group, 1, groups_.stack(group, blended).read(), half, rotated);
  divide_by_moments<Space>(stream.exec, keys_.beta2, keys_.eps, flat_, scratch.places, rotated);
  for (const auto& group : groups_.groups()) groups_.rotate_back(stream.gemm, group, rotated, half);
  match_norms<Space>(stream.exec, scratch.muon.squares, scratch.norms, flat_, scratch.places);
}

#define SESTINA_SOAP_MUON_UPDATES(Space) template class SoapMuonUpdates<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_SOAP_MUON_UPDATES)

}  // namespace sestina

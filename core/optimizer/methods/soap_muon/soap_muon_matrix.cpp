#include "core/optimizer/methods/soap_muon/soap_muon_matrix.hpp"

#include "core/optimizer/base/sides.hpp"
#include "kernels/optimizer/batch/soap_muon_batch.hpp"

namespace sestina {
namespace {

// The memory of the direction: u, and two sheets in which it is rotated and back; its norm.
template <class Space>
struct SoapMuonPieces {
  SoapMuonPieces(Workspace<Space>& workspace, std::size_t m, std::size_t n)
      : u(workspace.template take<float>(m, n)),
        half(workspace.template take<float>(m, n)),
        rotated(workspace.template take<float>(m, n)),
        norm(workspace, m * n) {}
  Matrix<float, Space> u, half, rotated;
  MatchNormScratch<Space> norm;
};

}  // namespace

template <class Space>
SoapMuon<Space>::SoapMuon(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
    : keys_(options.as<SoapMuonOptions>()),
      refresh_every_(options.refresh_every),
      shape_(shape),
      rule_(muon_rule(keys_, shape.rows, shape.cols)),
      state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
      sides_(state_, options, keys_.basis_first, keys_.matmul_precision, shape.rows, shape.cols),
      momentum_(state_.matrix("momentum")),
      second_moment_(state_.matrix("second_moment")),
      updates_(state_.counter("updates")),
      started_(state_.counter("started")) {}

template <class Space>
void SoapMuon<Space>::step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
  if (started_ != 0) ++updates_;
  if (rule_.in_bf16(matrix.computes_bf16()))
    move<bf16>(stream, now, matrix);
  else
    move<float>(stream, now, matrix);
  follow(stream, now.gradient_scale, matrix.gradient);
}

template <class Space>
void SoapMuon<Space>::declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                                      std::size_t cols) {
  const auto& o = options.as<SoapMuonOptions>();
  const Sides sides = sides_with_bases(fields_of(options, rows, cols));
  declare_first_bases<Space>(workspace, o.basis_first, sides, rows, cols);
  declare_side_refreshes<Space>(workspace, sides, soap_muon_refresh(o), rows, cols);
  const auto frame = workspace.frame();
  const SumScratch<Space> squares(workspace, rows * cols);
  const SoapMuonPieces<Space> pieces(workspace, rows, cols);
  declare_products<Space>(workspace, o.matmul_precision, rows, cols);
  take_newton_schulz(workspace, muon_rule(o, rows, cols).newton_schulz(),
                     o.ns_precision == MuonOptions::Precision::bf16, rows, cols);
}

template <class Space>
template <class T>
void SoapMuon<Space>::move(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
  const auto frame = stream.workspace.frame();
  const std::size_t m = shape_.rows, n = shape_.cols;
  const Vector<double, Space> squares = SumScratch<Space>(stream.workspace, m * n).chunks;
  const Vector<const float, Space> gradient = flat<const float, Space>(matrix.gradient);
  const MomentumStep step = momentum_step(rule_.factors(now.momentum), now.gradient_scale);
  advance_momentum<Space>(stream.exec, step, gradient, flat<float, Space>(momentum_), squares);
  Blend<Space> direction{gradient, flat<const float, Space>(momentum_), step.p, step.q};
  if (started_ != 0) direction = {{}, flat<const float, Space>(whitened(stream, direction, squares))};
  const Matrix<const T, Space> orthogonal = newton_schulz<T, Space>(stream.exec, stream.gemm, stream.workspace,
                                                                    rule_.newton_schulz(), direction, m, n, squares);
  const WeightMove weight_move = {now.lr, rule_.scale, now.weight_decay, true, stream.nonfinite};
  move_weight_wide<Space, T>(stream.exec, weight_move, orthogonal, matrix.master, matrix.weight);
}

template <class Space>
Matrix<const float, Space> SoapMuon<Space>::whitened(Stream<Space>& stream, const Blend<Space>& u,
                                                     Vector<double, Space> squares) {
  const SoapMuonPieces<Space> p(stream.workspace, shape_.rows, shape_.cols);
  form_blend<Space>(stream.exec, u, flat<float, Space>(p.u));
  sides_.rotate(stream, 1, p.u, p.half, p.rotated);
  divide_by_moment<Space>(stream.exec, keys_.beta2, keys_.eps, flat<float, Space>(second_moment_),
                          flat<float, Space>(p.rotated));
  const Matrix<float, Space> d = sides_.rotate_back(stream, p.rotated, p.half);
  match_norm<Space>(stream.exec, squares, p.norm, flat<float, Space>(d));
  return d;
}

template <class Space>
void SoapMuon<Space>::follow(Stream<Space>& stream, double gradient_scale, Matrix<const float, Space> gradient) {
  const bool starts = started_ == 0;
  if (starts && (is_zero<Space>(stream, gradient) || !sides_.first_bases(stream, updates_, gradient))) return;
  started_ = 1;
  const double beta = keys_.factor_beta;
  sides_.accumulate(stream, beta, (1 - beta) * gradient_scale * gradient_scale, gradient);
  if (!starts) refresh(stream);
}

template <class Space>
bool SoapMuon<Space>::repeats(const RefreshPolicy& policy) {
  return started_ != 0 && !sides_.by_drift() && !refresh_due(updates_ + 1, refresh_every_, shape_.index, policy);
}

template <class Space>
void SoapMuon<Space>::refresh(Stream<Space>& stream) {
  const bool due = refresh_due(updates_, refresh_every_, shape_.index, stream.refresh.policy);
  sides_.refresh(stream, soap_muon_refresh(keys_), {updates_, due, stream.refresh.policy.is_in_update(shape_.index)},
                 {second_moment_, {}, {}});
}

#define SESTINA_SOAP_MUON_MATRIX(Space) template class SoapMuon<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_SOAP_MUON_MATRIX)

}  // namespace sestina

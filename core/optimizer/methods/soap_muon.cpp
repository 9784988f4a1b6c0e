#include "core/optimizer/methods/soap_muon.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/optimizer/soap_muon.hpp"

namespace sestina {

SoapMuonOptions::SoapMuonOptions() {
  scale = Scale::original;
  ns_norm = Norm::gram;
}

void SoapMuonOptions::fields(OptionFields& f) {
  MuonOptions::fields(f);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.number("factor_beta", factor_beta, below_one);
  f.integer("max_dim", max_dim, {.min = 1});
  f.number("basis_shift", basis_shift, below_one);
  f.choice("basis_first", basis_first, {"eigh", "svd"});
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

namespace {

using SoapMuonKeys = SoapMuonOptions;

RefreshRule soap_muon_refresh(const SoapMuonKeys& o) {
  RefreshRule rule;
  rule.first = o.basis_first;
  rule.shift = o.basis_shift;
  return rule;
}

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

template <class Space>
class SoapMuon final : public MatrixOptimizer<Space> {
 public:
  SoapMuon(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : keys_(options.as<SoapMuonKeys>()),
        refresh_every_(options.refresh_every),
        shape_(shape),
        rule_(muon_rule(keys_, shape.rows, shape.cols)),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        sides_(state_, options, keys_.basis_first, keys_.matmul_precision, shape.rows, shape.cols),
        momentum_(state_.matrix("momentum")),
        second_moment_(state_.matrix("second_moment")),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {}

  void step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    if (started_ != 0) ++updates_;
    if (rule_.in_bf16(matrix.computes_bf16()))
      move<bf16>(stream, now, matrix);
    else
      move<float>(stream, now, matrix);
    follow(stream, now.gradient_scale, matrix.gradient);
  }
  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    const auto& o = options.as<SoapMuonKeys>();
    const Sides sides = sides_with_bases(fields_of(options, rows, cols));
    declare_first_bases<Space>(workspace, o.basis_first, sides, rows, cols);
    declare_side_refreshes<Space>(workspace, sides, soap_muon_refresh(o), rows, cols);
    const auto frame = workspace.frame();
    const SumScratch<Space> squares(workspace, rows * cols);
    const SoapMuonPieces<Space> pieces(workspace, rows, cols);
    declare_products<Space>(workspace, o.matmul_precision, rows, cols);
    take_newton_schulz(workspace, muon_rule(o, rows, cols).newton_schulz(), o.ns_precision == Precision::bf16, rows,
                       cols);
  }
  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return sides_.ages(); }
  RefreshPort<Space>* port() override { return &sides_.port(); }

 private:
  using Precision = MuonOptions::Precision;

  // Moves the weight; products of Newton-Schulz are in T.
  template <class T>
  void move(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
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

  // Returns D with the norm of u, whose squares are given. Newton-Schulz divides by that norm again, whatever it is, so
  // that only its eps sees it: the Frobenius norm serves, which costs no product.
  Matrix<const float, Space> whitened(Stream<Space>& stream, const Blend<Space>& u, Vector<double, Space> squares) {
    const SoapMuonPieces<Space> p(stream.workspace, shape_.rows, shape_.cols);
    form_blend<Space>(stream.exec, u, flat<float, Space>(p.u));
    sides_.rotate(stream, 1, p.u, p.half, p.rotated);
    divide_by_moment<Space>(stream.exec, keys_.beta2, keys_.eps, flat<float, Space>(second_moment_),
                            flat<float, Space>(p.rotated));
    const Matrix<float, Space> d = sides_.rotate_back(stream, p.rotated, p.half);
    match_norm<Space>(stream.exec, squares, p.norm, flat<float, Space>(d));
    return d;
  }

  // Lets factors and bases follow the gradient; they start with the first one that is not zero, which alone has
  // eigenvectors worth keeping.
  void follow(Stream<Space>& stream, double gradient_scale, Matrix<const float, Space> gradient) {
    const bool starts = started_ == 0;
    if (starts && (is_zero<Space>(stream, gradient) || !sides_.first_bases(stream, updates_, gradient))) return;
    started_ = 1;
    const double beta = keys_.factor_beta;
    sides_.accumulate(stream, beta, (1 - beta) * gradient_scale * gradient_scale, gradient);
    if (starts) return;
    const bool due = refresh_due(updates_, refresh_every_, shape_.index, stream.refresh.policy);
    sides_.refresh(stream, soap_muon_refresh(keys_), {updates_, due, stream.refresh.policy.is_in_update(shape_.index)},
                   {second_moment_, {}, {}});
  }

  SoapMuonKeys keys_;
  std::int64_t refresh_every_;
  MatrixShape shape_;
  MuonRule rule_;
  MatrixState<Space> state_;
  TwoSided<Space> sides_;
  Matrix<float, Space> momentum_, second_moment_;
  std::int64_t &updates_, &started_;
};

// Returns the work: a factor, two rotations, and Newton-Schulz.
UpdateWork soap_muon_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<SoapMuonKeys>();
  const Sides sides;
  UpdateWork work = side_work(sides, rows, cols, 1 + rotation_products(true), qr_step);
  work.update += newton_schulz_work(o, rows, cols).update;
  work.first_bases = first_bases_work(o.basis_first, sides, rows, cols);
  return work;
}

MatrixKind soap_muon_kind() {
  MatrixKind kind = matrix_kind<SoapMuonKeys>("soap-muon");
  kind.refresh_every = 1;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return rotated_fields(options, Sides{}, true, false, rows, cols);
  };
  kind.stated_flops = [](double rows, double cols) {
    return stated_rotation(rows, cols) + stated_products(rows, cols);
  };
  kind.work = soap_muon_work;
  kind.newton_schulz = [](const MatrixOptions& options) {
    return static_cast<std::int64_t>(newton_schulz_steps(options.as<SoapMuonKeys>()).size());
  };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const auto& o = options.as<SoapMuonKeys>();
    return two_sided_needs(options, Sides{}, soap_muon_refresh(o), rows, cols);
  };
  // Newton-Schulz, whose polynomial is odd, keeps what SOAP keeps; rows that are scaled alone are not skew.
  kind.keeps_skew = [](const MatrixOptions& options) { return !options.as<SoapMuonKeys>().row_equilibration; };
  kind.max_dim = [](const MatrixOptions& options) { return options.as<SoapMuonKeys>().max_dim; };
  kind.width_power = [](const MatrixOptions& options) {
    return std::optional(width_power(options.as<SoapMuonKeys>().scale));
  };
  kind.checks = {[](Deck& deck, Options& options) {
    check_newton_schulz(deck, options, std::any_cast<SoapMuonKeys&>(options.optimizer.matrix->keys));
  }};
  return kind;
}

}  // namespace

void register_soap_muon() { register_matrix_kind<SoapMuon>(soap_muon_kind()); }

}  // namespace sestina

// Muon (K. Jordan et al., 2024) and the two relatives that follow it up with a second moment of the orthogonalised
// direction: NorMuon (Li et al., arXiv 2510.05491) and AdaMuon (Si et al., arXiv 2507.11005). Up to the direction they
// are one: momentum and its norm in one pass, then Newton-Schulz; they differ in the last pass (muon_update.hpp).
#include <algorithm>

#include "core/optimizer/kinds/matrix_optimizer.hpp"
#include "core/optimizer/kinds/muon_rule.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "kernels/optimizer/muon_update.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {
namespace {

enum class Variant { muon, normuon, adamuon };

template <class Space>
class Muon final : public MatrixOptimizer<Space> {
 public:
  Muon(const Space& exec, const MatrixOptions& options, const MatrixShape& shape, Variant variant)
      : variant_(variant),
        rows_(shape.rows),
        cols_(shape.cols),
        rule_(read_muon_rule(options, shape.rows, shape.cols)),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        momentum_(state_.vector("momentum")) {
    if (variant != Variant::muon)
      second_moment_ = {options.number("beta2"), options.number("eps"), options.flag("keep_norm")};
  }

  void step(Lane<Space>& lane, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) override {
    using Precision = MuonRule::Precision;
    const bool has_rounded = matrix.weight.size() != 0;
    if (rule_.precision == Precision::bf16 || (rule_.precision == Precision::automatic && has_rounded))
      step_as<bf16>(lane, numbers, matrix);
    else
      step_as<float>(lane, numbers, matrix);
  }

  MatrixState<Space>& state() override { return state_; }

 private:
  template <class T>
  void step_as(Lane<Space>& lane, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) {
    const auto frame = lane.workspace.frame();
    const std::size_t n = rows_ * cols_;
    const Vector<const float, Space> gradient(matrix.gradient.data(), n), momentum = momentum_;
    const Vector<double, Space> squares = lane.workspace.template take<double>(chunk_count(n));
    const double clip = numbers.gradient_scale;
    const float p = static_cast<float>(clip * rule_.p), q = static_cast<float>(rule_.q);
    advance_momentum(lane.exec, {static_cast<float>(rule_.keep), static_cast<float>(clip * rule_.gain), p, q}, gradient,
                     momentum_, squares);
    const NewtonSchulz ns = {rule_.steps, rule_.ns_eps, rule_.norm};
    const Matrix<const T, Space> direction =
        newton_schulz<T>(lane.exec, lane.gemm, lane.workspace, ns, Blend<Space>{gradient, momentum, p, q}, rows_, cols_,
                         Vector<const double, Space>(squares));
    const WeightMove move = {numbers.lr, rule_.scale, numbers.weight_decay, true, lane.nonfinite};
    if (variant_ == Variant::muon)
      move_weight_wide(lane.exec, move, direction, matrix.master, matrix.weight);
    else if (variant_ == Variant::normuon)
      move_weight_normuon(lane.exec, move, second_moment_, direction, state_.vector("second_moment"), matrix.master,
                          matrix.weight, lane.workspace);
    else
      move_weight_adamuon(lane.exec, move, second_moment_, direction, state_.matrix("second_moment"), matrix.master,
                          matrix.weight, lane.workspace);
  }

  Variant variant_;
  std::size_t rows_, cols_;
  MuonRule rule_;
  SecondMoment second_moment_;
  MatrixState<Space> state_;
  Vector<float, Space> momentum_;  // (m n)
};

template <class Space>
std::size_t muon_scratch_bytes(const MatrixOptions& options, std::size_t rows, std::size_t cols, Variant variant) {
  const std::size_t products = read_muon_rule(options, rows, cols).precision == MuonRule::Precision::bf16
                                   ? newton_schulz_workspace_bytes<bf16, Space>(rows, cols)
                                   : newton_schulz_workspace_bytes<float, Space>(rows, cols);
  const std::size_t last = variant == Variant::normuon   ? normuon_workspace_bytes<Space>(rows, cols)
                           : variant == Variant::adamuon ? adamuon_workspace_bytes<Space>(rows, cols)
                                                         : 0;
  return products + last + Workspace<Space>::template bytes<double>(chunk_count(rows * cols));
}

}  // namespace

#define SESTINA_MUON_MAKER(id)                                                                       \
  template <class Space>                                                                             \
  std::unique_ptr<MatrixOptimizer<Space>> make_##id(const Space& exec, const MatrixOptions& options, \
                                                    const MatrixShape& shape) {                      \
    return std::make_unique<Muon<Space>>(exec, options, shape, Variant::id);                         \
  }                                                                                                  \
  template <class Space>                                                                             \
  std::size_t scratch_##id(const MatrixOptions& options, std::size_t rows, std::size_t cols) {       \
    return muon_scratch_bytes<Space>(options, rows, cols, Variant::id);                              \
  }
SESTINA_MUON_MAKER(muon)
SESTINA_MUON_MAKER(normuon)
SESTINA_MUON_MAKER(adamuon)

#define SESTINA_MUON_INSTANCE(Space, id)                                                                \
  template std::size_t scratch_##id<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_##id<Space>(const Space&, const MatrixOptions&, \
                                                                    const MatrixShape&);
#define SESTINA_MUON_INSTANCES(Space)   \
  SESTINA_MUON_INSTANCE(Space, muon)    \
  SESTINA_MUON_INSTANCE(Space, normuon) \
  SESTINA_MUON_INSTANCE(Space, adamuon)
SESTINA_INSTANTIATE_LANES(SESTINA_MUON_INSTANCES)

}  // namespace sestina

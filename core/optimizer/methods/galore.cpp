#include <algorithm>
#include <cmath>

#include "core/optimizer/methods/low_rank.hpp"
#include "kernels/blas/matrix_copy.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

template <class Space>
class GaLore : public MatrixOptimizer<Space> {
 public:
  GaLore(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : adam_{options.number("beta1"), options.number("beta2"), options.number("eps")},
        scale_(options.number("scale")),
        decay_first_(options.word("decay_order") == "before"),
        given_(options.word("projector") == "given"),
        refresh_every_(options.refresh_every),
        shape_(shape),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        low_(state_, low_rank_of(options, std::int64_t(shape.rows), std::int64_t(shape.cols)).right),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {}

  void step(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    const bool due = refresh_due(updates_, refresh_every_, shape_.index, lane.refresh_policy.stagger);
    if ((due || started_ == 0) && !given_ && !refresh(lane, matrix.gradient) && started_ == 0) return;
    started_ = 1;
    ++updates_;
    const auto frame = lane.workspace.frame();
    const Matrix<float, Space> small = take_small(lane), direction = take_small(lane);
    const Matrix<float, Space> whole = lane.workspace.template take<float>(shape_.rows, shape_.cols);
    low_.project(lane, static_cast<float>(now.gradient_scale), matrix.gradient, small);
    low_.adam(lane, adam_, small, direction);
    low_.project_back(lane, direction, whole);
    const auto t = static_cast<double>(updates_);
    const double correction = std::sqrt(1 - std::pow(adam_.beta2, t)) / (1 - std::pow(adam_.beta1, t));
    move_weight<Space, float>(lane.exec, {now.lr, scale_ * correction, now.weight_decay, decay_first_, lane.nonfinite},
                              flat<float, Space>(whole), flat<float, Space>(matrix.master),
                              flat<bf16, Space>(matrix.weight));
  }

  std::size_t workspace_bytes() const override {
    using W = Workspace<Space>;
    const std::size_t m = shape_.rows, n = shape_.cols, d = low_.right ? n : m;
    const std::size_t update = 2 * W::template bytes<float>(low_.momentum.size()) + W::template bytes<float>(m * n);
    const std::size_t refresh = std::max(reduce_workspace_bytes<Space>(m * n),
                                         W::template bytes<float>(d * d) + cold_bases_workspace_bytes<Space>(m, n));
    return std::max(update, refresh);
  }
  MatrixState<Space>& state() override { return state_; }

 private:
  Matrix<float, Space> take_small(Lane<Space>& lane) const {
    return lane.workspace.template take<float>(low_.momentum.extent(0), low_.momentum.extent(1));
  }

  // Leading singular vectors, with signs that depend on them alone: the moments outlive the projector. A gradient of
  // zeros leaves the last one.
  bool refresh(Lane<Space>& lane, Matrix<const float, Space> gradient) {
    if (is_zero<Space>(lane, gradient)) return false;
    const auto frame = lane.workspace.frame();
    const std::size_t d = low_.right ? shape_.cols : shape_.rows;
    const Matrix<float, Space> basis = lane.workspace.template take<float>(d, d), none;
    if (!cold_bases<Space>(lane, gradient, low_.right ? none : basis, low_.right ? basis : none)) return false;
    leading_columns<Space>(lane.exec, basis, low_.right, low_.projector);
    return true;
  }

  AdamRule adam_;
  double scale_;
  bool decay_first_, given_;
  std::int64_t refresh_every_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  LowRankMoments<Space> low_;
  std::int64_t &updates_, &started_;
};

}  // namespace

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_galore(const Space& exec, const MatrixOptions& options,
                                                    const MatrixShape& shape) {
  return std::make_unique<GaLore<Space>>(exec, options, shape);
}

#define SESTINA_GALORE(Space)                                                                             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_galore<Space>(const Space&, const MatrixOptions&, \
                                                                      const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_GALORE)

}  // namespace sestina

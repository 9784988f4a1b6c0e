#include <algorithm>

#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/methods/kl_factors.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {
namespace {

// The bases of KL-Shampoo, and in them Adam without bias correction. The momentum stays in the original basis.
template <class Space>
class KlSoap : public MatrixOptimizer<Space> {
 public:
  KlSoap(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rule_(KlRule::read(options)),
        beta2_(options.number("beta2")),
        shape_(shape),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        factors_(state_, options, rule_, shape.rows, shape.cols),
        momentum_(state_.matrix("momentum")),
        second_moment_(state_.matrix("second_moment")),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {}

  void step(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    if (started_ == 0) {
      if (!factors_.start(lane, updates_, now.gradient_scale, matrix.gradient)) return;
      started_ = 1;
      if (rule_.skip_first) return;
    }
    ++updates_;
    update(lane, now, matrix);
    const bool due = refresh_due(updates_, rule_.refresh_every, shape_.index, lane.refresh_policy);
    factors_.refresh(lane, {updates_, due}, second_moment_);
  }

  std::size_t workspace_bytes() const override {
    const std::size_t matrix = Workspace<Space>::template bytes<float>(shape_.rows * shape_.cols);
    return std::max(2 * matrix + factors_.roots_bytes() + factors_.accumulate_bytes(), factors_.rest_bytes());
  }
  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return factors_.sides().ages(); }
  RefreshNeeds refresh_needs() const override { return factors_.refresh_needs(); }

 private:
  // The gradient is rotated once, for the second moment and for the factors; the bases change at a refresh only.
  void update(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
    const auto frame = lane.workspace.frame();
    const Matrix<float, Space> half = lane.workspace.template take<float>(shape_.rows, shape_.cols);
    const Matrix<float, Space> rotated = lane.workspace.template take<float>(shape_.rows, shape_.cols);
    const auto roots = factors_.roots(lane);
    factors_.rotate(lane, now.gradient_scale, matrix.gradient, half, rotated);
    average_squares<Space>(lane.exec, beta2_, flat<float, Space>(rotated), flat<float, Space>(second_moment_));
    factors_.accumulate(lane, now.gradient_scale, roots, matrix.gradient, half, rotated);
    average_momentum<Space>(lane.exec, rule_.beta1, now.gradient_scale, flat<const float, Space>(matrix.gradient),
                            flat<float, Space>(momentum_));
    factors_.sides().rotate(lane, 1, momentum_, half, rotated);
    divide_by_root<Space>(lane.exec, rule_.eps, flat<float, Space>(second_moment_), flat<float, Space>(rotated));
    const Matrix<float, Space> direction = factors_.sides().rotate_back(lane, rotated, half);
    move_weight<Space, float>(lane.exec, {now.lr, 1, now.weight_decay, rule_.decay_first, lane.nonfinite},
                              flat<float, Space>(direction), flat<float, Space>(matrix.master),
                              flat<bf16, Space>(matrix.weight));
  }

  KlRule rule_;
  double beta2_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  KlFactors<Space> factors_;
  Matrix<float, Space> momentum_, second_moment_;
  std::int64_t &updates_, &started_;
};

}  // namespace

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_kl_soap(const Space& exec, const MatrixOptions& options,
                                                     const MatrixShape& shape) {
  return std::make_unique<KlSoap<Space>>(exec, options, shape);
}

#define SESTINA_KL_SOAP(Space)                                                                             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_kl_soap<Space>(const Space&, const MatrixOptions&, \
                                                                       const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_KL_SOAP)

}  // namespace sestina

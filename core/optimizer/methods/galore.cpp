#include <algorithm>
#include <cmath>

#include "core/optimizer/methods/low_rank.hpp"
#include "core/optimizer/refresh/port.hpp"
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
        port_(state_, options,
              {{.name = shape.path + "/projector", .snapshot = "snapshot", .room = {.root = low_.projector.size()}}}),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {}

  void step(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    if (!given_ && !refresh(lane, matrix.gradient) && started_ == 0) return;
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
    const std::size_t m = shape_.rows, n = shape_.cols;
    const std::size_t update = 2 * W::template bytes<float>(low_.momentum.size()) + W::template bytes<float>(m * n);
    return std::max(update, leading_vectors_bytes<Space>(m, n, low_.right));
  }
  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return port_.ages(); }
  RefreshNeeds refresh_needs() const override {
    return {port_.sides(), leading_vectors_bytes<Serial>(shape_.rows, shape_.cols, low_.right)};
  }

 private:
  Matrix<float, Space> take_small(Lane<Space>& lane) const {
    return lane.workspace.template take<float>(low_.momentum.extent(0), low_.momentum.extent(1));
  }

  // The projector of the update that begins. A gradient of zeros leaves the last one. True: there is a new one.
  bool refresh(Lane<Space>& lane, Matrix<const float, Space> gradient) {
    const bool due = refresh_due(updates_, refresh_every_, shape_.index, lane.refresh_policy);
    const RefreshJob<Space> job{.method = RefreshMethod::leading_vectors,
                                .name = state_.path(),
                                .factor = gradient,
                                .root = low_.projector,
                                .right = low_.right};
    const Due when = started_ == 0 ? Due::first : due ? Due::now : Due::no;
    return port_.at(lane, 0, updates_ + 1, when, [&job](std::int64_t) { return job; }) == Refreshed::done;
  }

  AdamRule adam_;
  double scale_;
  bool decay_first_, given_;
  std::int64_t refresh_every_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  LowRankMoments<Space> low_;
  RefreshPort<Space> port_;
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

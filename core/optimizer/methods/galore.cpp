#include <algorithm>

#include "core/optimizer/methods/lazy_period.hpp"
#include "core/optimizer/methods/low_rank.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

template <class Space>
class GaLore : public MatrixOptimizer<Space> {
 public:
  GaLore(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rule_(LowRankRule::read(options, shape)),
        shape_(shape),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        projector_(state_, options, shape),
        low_(state_, rule_.right, static_cast<std::size_t>(options.state_block)),
        port_(state_, options,
              {{.name = shape.path + "/projector", .snapshot = "snapshot", .room = {.root = projector_.size()}}}),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {
    if (const double threshold = options.number("lazy_cosine"); threshold > 0) lazy_ = {state_, threshold};
  }

  void step(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    const auto frame = lane.workspace.frame();
    const Matrix<float, Space> projector = projector_.place(lane);
    const bool is_new = !rule_.given && refresh(lane, matrix.gradient, projector);
    if (!rule_.given && !is_new && started_ == 0) return;
    if (is_new) {
      projector_.keep(lane.exec, projector);
      lazy_.renewed(lane.exec, first_vector(projector));
    }
    projector_.recall(lane.exec, projector);
    started_ = 1;
    ++updates_;
    const Matrix<float, Space> small = low_.take_small(lane), direction = low_.take_small(lane);
    const Matrix<float, Space> whole = lane.workspace.template take<float>(shape_.rows, shape_.cols);
    low_.project(lane, static_cast<float>(now.gradient_scale), projector, matrix.gradient, small);
    low_.adam(lane, rule_.adam, small, direction);
    low_.project_back(lane, projector, direction, whole);
    const double scale = rule_.scale * rule_.bias_correction(updates_);
    const WeightMove move{now.lr, scale, now.weight_decay, rule_.decay_first, lane.nonfinite};
    if (matrix.coded.rows > 0)
      return move_coded<Space>(lane.exec, move, whole, {}, matrix.coded, rounding_key(rule_.stream, now.t));
    move_weight<Space, float>(lane.exec, move, flat<float, Space>(whole), flat<float, Space>(matrix.master),
                              flat<bf16, Space>(matrix.weight));
  }

  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return port_.ages(); }
  RefreshPort<Space>* port() override { return &port_; }

 private:
  // A row of the projector of the right side, a column of the left one, as (n, 1).
  Matrix<const float, Space> first_vector(const Matrix<float, Space>& projector) const {
    if (low_.right) return Matrix<const float, Space>(projector.data(), shape_.cols, 1);
    return Kokkos::subview(projector, Kokkos::ALL, std::pair(std::size_t{0}, std::size_t{1}));
  }

  // The projector of the update that begins. A gradient of zeros leaves the last one. True: there is a new one.
  bool refresh(Lane<Space>& lane, Matrix<const float, Space> gradient, Matrix<float, Space> projector) {
    const bool due = refresh_due(updates_, lazy_.period(rule_.refresh_every), shape_.index, lane.refresh_policy);
    const RefreshJob<Space> job{.method = RefreshMethod::leading_vectors,
                                .name = state_.path(),
                                .factor = gradient,
                                .root = projector,
                                .right = low_.right,
                                .form = rule_.form};
    const Due when = started_ == 0 ? Due::first : due ? Due::now : Due::no;
    return port_.at(lane, 0, updates_ + 1, when, [&job](std::int64_t) { return job; }) == Refreshed::done;
  }

  LowRankRule rule_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  Projector<Space> projector_;
  LowRankMoments<Space> low_;
  RefreshPort<Space> port_;
  LazyPeriod<Space> lazy_;
  std::int64_t &updates_, &started_;
};

}  // namespace

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_galore(const Space& exec, const MatrixOptions& options,
                                                    const MatrixShape& shape) {
  return std::make_unique<GaLore<Space>>(exec, options, shape);
}

RefreshNeeds galore_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const LowRank low = low_rank_of(options, rows, cols);
  const auto m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(cols);
  return {.jobs = 1,
          .scratch = leading_vectors_bytes<Serial>(basis_form(options.word("projector")), m, n, low.right,
                                                   static_cast<std::size_t>(low.rank)),
          .results = low.projector_elements(m, n) * sizeof(float),
          .copies = m * n * sizeof(float)};
}

template <class Space>
std::size_t scratch_galore(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  using W = Workspace<Space>;
  const LowRank low = low_rank_of(options, std::int64_t(rows), std::int64_t(cols));
  const std::size_t update =
      2 * W::template bytes<float>(low.small_elements(rows, cols)) + W::template bytes<float>(rows * cols);
  return Projector<Space>::scratch(options, low, rows, cols) +
         std::max(update, leading_vectors_bytes<Space>(basis_form(options.word("projector")), rows, cols, low.right,
                                                       static_cast<std::size_t>(low.rank)));
}

#define SESTINA_GALORE(Space)                                                                             \
  template std::size_t scratch_galore<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_galore<Space>(const Space&, const MatrixOptions&, \
                                                                      const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_GALORE)

}  // namespace sestina

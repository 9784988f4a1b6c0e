#include "core/optimizer/methods/apollo.hpp"

#include <algorithm>
#include <cmath>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/methods/low_rank.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/base/random.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

void ApolloOptions::fields(OptionFields& f) {
  LowRankOptions::fields(f, {"random", "given"});
  f.flag("scale_front", scale_front);
  f.choice("scale_type", scale_type, {"channel", "tensor"});
  f.number("growth_limit", growth_limit);
  f.eps("norm_eps", norm_eps);
  f.integer("seed", seed);
}

namespace {

ChannelRule channel_rule(const ApolloOptions& o) {
  ChannelRule rule;
  rule.scale = o.scale;
  rule.scale_front = o.scale_front;
  rule.per_tensor = o.scale_type == ApolloOptions::ScaleType::tensor;
  rule.norm_eps = o.norm_eps;
  rule.growth_limit = o.growth_limit;
  return rule;
}

template <class Space>
class Apollo final : public MatrixOptimizer<Space> {
 public:
  Apollo(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rule_(options.as<ApolloOptions>(), options, shape),
        channel_rule_(channel_rule(options.as<ApolloOptions>())),
        stream_(stream_of(static_cast<std::uint64_t>(options.as<ApolloOptions>().seed), shape.path)),
        shape_(shape),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        projector_(state_, options.as<ApolloOptions>(), shape),
        low_(state_, rule_.right),
        port_(state_, options, {{.name = shape.path + "/projector"}}),
        update_norm_(state_.vector("update_norm")),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {
    if (!is_host<Space>) drawn_ = decltype(drawn_)("sestina::drawn_projector", projector_.size());
  }

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    const auto& o = options.as<ApolloOptions>();
    const LowRank low = low_rank_of(o, std::int64_t(rows), std::int64_t(cols));
    declare<SumScratch<Space>>(workspace, rows * cols);
    if (o.has_coded_projector()) ProjectorScratch<Space>(workspace, low.projector(rows, cols));
    const ChannelPieces pieces(workspace, low.right ? rows : cols, low.small(rows, cols));
    if (!low.right) declare<ColumnSquaresScratch<Space>>(workspace, rows, cols);
  }

  void step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    if (started_ == 0 && is_zero<Space>(stream, matrix.gradient))  // growth from a norm of 0 is hardly allowed
      return round_matrix<Space>(stream.exec, matrix.master, matrix.weight);
    const auto frame = stream.workspace.frame();
    const StateArray<Space> projector = projector_.place(stream);
    if (!rule_.given && updates_ % rule_.refresh_every == 0) draw(stream, projector);
    projector_.recall(stream.exec, projector);
    started_ = 1;
    port_.pass(++updates_);
    const Vector<float, Space> factors = channel_scales(stream, now, projector.read(), matrix.gradient);
    const double correction = rule_.bias_correction(updates_);
    const WeightMove move{now.lr, correction, now.weight_decay, rule_.decay_first, stream.nonfinite};
    if (matrix.coded.rows > 0)
      return move_coded<Space>(stream.exec, move, matrix.gradient, {factors, low_.right}, matrix.coded,
                               rounding_key(rule_.rounding, now.t));
    move_channels<Space>(stream.exec, move, low_.right, factors, matrix.gradient, matrix.master, matrix.weight);
  }

  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return port_.ages(); }
  RefreshPort<Space>* port() override { return &port_; }

 private:
  struct ChannelPieces {
    ChannelPieces(Workspace<Space>& workspace, std::size_t channels, LowRank::Size size)
        : factors(workspace.template take<float>(channels)),
          of_direction(workspace.template take<float>(channels)),
          of_small(workspace.template take<float>(channels)),
          of_gradient(workspace.template take<float>(channels)),
          small(workspace.template take<float>(size.rows, size.cols)),
          direction(workspace.template take<float>(size.rows, size.cols)) {}
    Vector<float, Space> factors, of_direction, of_small, of_gradient;
    Matrix<float, Space> small, direction;
  };

  // Returns the factor of each row or column of the gradient.
  Vector<float, Space> channel_scales(Stream<Space>& stream, const UpdateNumbers& now,
                                      Matrix<const float, Space> projector, Matrix<const float, Space> gradient) {
    const ChannelPieces p(stream.workspace, low_.right ? shape_.rows : shape_.cols, low_.size);
    low_.project(stream, static_cast<float>(now.gradient_scale), projector, gradient, p.small);
    low_.adam(stream, rule_.adam, p.small, p.direction);
    channel_squares(stream, p.direction, p.of_direction);
    channel_squares(stream, p.small, p.of_small);
    channel_squares(stream, gradient, p.of_gradient);
    ChannelRule rule = channel_rule_;
    rule.gradient_scale = now.gradient_scale;
    rule.limited = updates_ > 1;
    channel_factors<Space>(stream.exec, rule, p.of_direction, p.of_small, p.of_gradient, update_norm_, p.factors);
    return p.factors;
  }

  void channel_squares(Stream<Space>& stream, Matrix<const float, Space> x, Vector<float, Space> sums) const {
    if (low_.right)
      row_squares<Space>(stream.exec, x, {}, sums);
    else
      column_squares<Space>(stream.exec, x, {}, sums, stream.workspace);
  }

  // Draws N(0, 1/r) from seed, name and number of the refresh: the same on every layout.
  void draw(Stream<Space>& stream, const StateArray<Space>& projector) {
    const auto whole = projector.write();
    const std::size_t size = projector.size();
    const auto rank = static_cast<double>(projector.extent(low_.right ? 0 : 1));
    const auto number = static_cast<std::uint64_t>(updates_ / rule_.refresh_every);
    port_.renew(updates_ + 1);
    stream.exec.fence("projector");
    float* const to = is_host<Space> ? whole.view().data() : drawn_.data();
    normals(stream_, number * size, size, 1 / std::sqrt(rank), to);
    if constexpr (!is_host<Space>) Kokkos::deep_copy(stream.exec, flat<float, Space>(whole.view()), drawn_);
    projector_.keep(stream.exec, projector);
  }

  LowRankRule rule_;
  ChannelRule channel_rule_;
  std::uint64_t stream_;
  MatrixShape shape_;
  MatrixState<Space> state_;
  Projector<Space> projector_;
  LowRankMoments<Space> low_;
  RefreshPort<Space> port_;                        // draws are no jobs: it counts their age
  Kokkos::View<float*, Kokkos::HostSpace> drawn_;  // for a device: numbers drawn on its host
  Vector<float, Space> update_norm_;
  std::int64_t &updates_, &started_;
};

MatrixKind apollo_kind() {
  MatrixKind kind = matrix_kind<ApolloOptions>("apollo");
  kind.weight_decay = 0;
  kind.refresh_every = 200;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    std::vector<FieldSize> fields = low_rank_fields(options.as<ApolloOptions>(), rows, cols);
    fields.push_back({"update_norm", DType::f32, 1, 1});
    return fields;
  };
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {  // it projects, but not back
    return UpdateWork{.update = projection_work(low_rank_of(options.as<ApolloOptions>(), rows, cols), rows, cols) / 2};
  };
  kind.weight_group = 128;  // as in Q-APOLLO
  kind.checks = {[](Deck& deck, Options& options) {
    check_low_rank(deck, options, options.optimizer.matrix->as<ApolloOptions>());
  }};
  return kind;
}

}  // namespace

void register_apollo() { register_matrix_kind<Apollo>(apollo_kind()); }

}  // namespace sestina

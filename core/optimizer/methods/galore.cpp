#include "core/optimizer/methods/galore.hpp"

#include <algorithm>
#include <cmath>

#include "core/deck/options.hpp"
#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/low_rank.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

void GaloreOptions::fields(OptionFields& f) {
  LowRankOptions::fields(f, {"gram", "svd", "given"});
  f.number("lazy_cosine", lazy_cosine, {.min = 0, .max = 1});
}

namespace {

// Q-GaLore's lazy projector (arXiv 2407.08296, section 3.2): one that hardly turns is renewed half as often. After
// each refresh the new first vector is compared with the one before it; when the mean |cosine| of the last five is at
// least `lazy_cosine`, the period doubles. The released code takes the cosine with its sign, which a decomposition is
// free to choose; here the sign does not count. All of it is state, so that a run that resumes goes on in the same way.
template <class Space>
class LazyPeriod {
 public:
  LazyPeriod() = default;  // the period never grows
  LazyPeriod(MatrixState<Space>& state, double threshold)
      : threshold_(threshold),
        before_(state.matrix("first_vector")),
        cosines_(&state.counter("cosines")),
        refreshes_(&state.counter("refreshes")),
        doublings_(&state.counter("doublings")),
        sums_("sestina::cosine", 3) {}

  std::int64_t period(std::int64_t every) const { return refreshes_ == nullptr ? every : every << *doublings_; }

  // Called after a refresh, with the first vector (n, 1) of the new projector. Waits for the space.
  void renewed(const Space& exec, Matrix<const float, Space> first) {
    if (refreshes_ == nullptr) return;
    if (*refreshes_ > 0) {
      cosines_[(*refreshes_ - 1) % lazy_window] = cosine(exec, first);
      if (*refreshes_ >= lazy_window && mean() >= threshold_ && *doublings_ < most_doublings) ++*doublings_;
    }
    copy_matrix<Space>(exec, false, first, before_);
    ++*refreshes_;
  }

 private:
  static constexpr double unit = 1e9;  // cosines are counted in parts of this, since counters are integers
  static constexpr std::int64_t most_doublings = 20;  // longer than any run

  std::int64_t cosine(const Space& exec, Matrix<const float, Space> first) {
    const Matrix<const float, Space> before = before_;
    column_dots<Space, float>(exec, first, before, sums_.at(0));
    column_dots<Space, float>(exec, first, first, sums_.at(1));
    column_dots<Space, float>(exec, before, before, sums_.at(2));
    sums_.fetch(exec, "cosine");
    const double norms = std::sqrt(sums_[1] * sums_[2]);
    return norms > 0 ? std::llround(unit * std::abs(sums_[0]) / norms) : 0;
  }
  double mean() const {
    double sum = 0;
    for (std::int64_t i = 0; i < lazy_window; ++i) sum += static_cast<double>(cosines_[i]);
    return sum / (unit * static_cast<double>(lazy_window));
  }

  double threshold_ = 0;
  Matrix<float, Space> before_;      // (n, 1)
  std::int64_t* cosines_ = nullptr;  // the last ones, in a ring
  std::int64_t *refreshes_ = nullptr, *doublings_ = nullptr;
  HostValues<Space> sums_;
};

template <class Space>
class GaLore final : public MatrixOptimizer<Space> {
 public:
  GaLore(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rule_(options.as<GaloreOptions>(), options, shape),
        shape_(shape),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        projector_(state_, options.as<GaloreOptions>(), shape),
        low_(state_, rule_.right, static_cast<std::size_t>(options.state_block)),
        port_(state_, options,
              {{.name = shape.path + "/projector", .snapshot = "snapshot", .room = {.root = projector_.size()}}}),
        updates_(state_.counter("updates")),
        started_(state_.counter("started")) {
    if (const double threshold = options.as<GaloreOptions>().lazy_cosine; threshold > 0) lazy_ = {state_, threshold};
  }

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    const auto& o = options.as<GaloreOptions>();
    const LowRank low = low_rank_of(o, std::int64_t(rows), std::int64_t(cols));
    if (o.has_coded_projector()) ProjectorScratch<Space>(workspace, low.projector(rows, cols));
    declare_leading_vectors<Space>(workspace, o.form, rows, cols, low.right, static_cast<std::size_t>(low.rank));
    declare<UpdatePieces>(workspace, low.small(rows, cols), rows, cols);
  }

  void step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    const auto frame = stream.workspace.frame();
    const StateArray<Space> projector = projector_.place(stream);
    const bool is_new = !rule_.given && refresh(stream, matrix.gradient, projector);
    if (!rule_.given && !is_new && started_ == 0) return round_matrix<Space>(stream.exec, matrix.master, matrix.weight);
    if (is_new) {
      projector_.keep(stream.exec, projector);
      lazy_.renewed(stream.exec, first_vector(projector.read()));
    }
    projector_.recall(stream.exec, projector);
    started_ = 1;
    ++updates_;
    const UpdatePieces pieces(stream.workspace, low_.size, shape_.rows, shape_.cols);
    const Matrix<float, Space> small = pieces.small, direction = pieces.direction, whole = pieces.whole;
    low_.project(stream, static_cast<float>(now.gradient_scale), projector.read(), matrix.gradient, small);
    low_.adam(stream, rule_.adam, small, direction);
    low_.project_back(stream, projector.read(), direction, whole);
    const double scale = rule_.scale * rule_.bias_correction(updates_);
    const WeightMove move{now.lr, scale, now.weight_decay, rule_.decay_first, stream.nonfinite};
    if (matrix.coded.rows > 0)
      return move_coded<Space>(stream.exec, move, whole, {}, matrix.coded, rounding_key(rule_.rounding, now.t));
    move_weight<Space, float>(stream.exec, move, flat<float, Space>(whole), flat<float, Space>(matrix.master),
                              flat<bf16, Space>(matrix.weight));
  }

  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return port_.ages(); }
  RefreshPort<Space>* port() override { return &port_; }

 private:
  struct UpdatePieces {
    UpdatePieces(Workspace<Space>& workspace, LowRank::Size size, std::size_t rows, std::size_t cols)
        : small(workspace.template take<float>(size.rows, size.cols)),
          direction(workspace.template take<float>(size.rows, size.cols)),
          whole(workspace.template take<float>(rows, cols)) {}
    Matrix<float, Space> small, direction, whole;
  };

  // Returns the first vector, a row of the projector of the right side or a column of the left one, as (n, 1).
  Matrix<const float, Space> first_vector(const Matrix<const float, Space>& projector) const {
    if (low_.right) return Matrix<const float, Space>(projector.data(), shape_.cols, 1);
    return Kokkos::subview(projector, Kokkos::ALL, std::pair(std::size_t{0}, std::size_t{1}));
  }

  // Makes the projector of the update that begins. A gradient of zeros leaves the last one. True: there is a new one.
  bool refresh(Stream<Space>& stream, Matrix<const float, Space> gradient, const StateArray<Space>& projector) {
    const bool due = refresh_due(updates_, lazy_.period(rule_.refresh_every), shape_.index, stream.refresh.policy);
    const RefreshJob<Space> job{.method = RefreshMethod::leading_vectors,
                                .name = state_.path(),
                                .factor = gradient,
                                .right = low_.right,
                                .form = rule_.form};
    const bool here = started_ == 0 || (due && stream.refresh.policy.is_in_update(shape_.index));
    const Due when = here ? Due::here : due ? Due::now : Due::no;
    return port_.at(stream, 0, updates_ + 1, when, [&](std::int64_t) {
      return RefreshRequest<Space>{job, {}, projector};
    }) == Refreshed::done;
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

// Adds the state of a LazyPeriod.
void add_lazy_fields(std::vector<FieldSize>& fields, const LowRank& low, std::int64_t rows, std::int64_t cols) {
  fields.push_back({"first_vector", DType::f32, low.right ? cols : rows, 1});
  fields.push_back({"cosines", DType::i64, lazy_window, 1});
  fields.push_back({"refreshes", DType::i64, 1, 1});
  fields.push_back({"doublings", DType::i64, 1, 1});
}

std::vector<FieldSize> galore_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<GaloreOptions>();
  std::vector<FieldSize> fields = low_rank_fields(o, rows, cols, options.state_bits == 8 ? options.state_block : 0);
  if (o.lazy_cosine > 0) add_lazy_fields(fields, low_rank_of(o, rows, cols), rows, cols);
  add_jobs(fields, options, {{"snapshot", DType::f32, rows, cols}});
  return fields;
}

UpdateWork galore_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<GaloreOptions>();
  const LowRank low = low_rank_of(o, rows, cols);
  const bool whole = o.form == BasisForm::svd;  // else the Gram matrix and its eigenvectors
  const UpdateWork basis =
      side_work({!low.right, low.right}, rows, cols, whole ? svd_products : 1, whole ? svd_vectors : all_eigenvectors);
  return {projection_work(low, rows, cols), basis.update + basis.refresh};
}

RefreshNeeds galore_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const LowRank low = low_rank_of(options.as<GaloreOptions>(), rows, cols);
  const auto m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(cols);
  const auto [projector_rows, projector_cols] = low.projector(m, n);
  const std::size_t scratch = bytes_taken<Serial>([&](Workspace<Serial>& counter) {
    declare_leading_vectors<Serial>(counter, options.as<GaloreOptions>().form, m, n, low.right,
                                    static_cast<std::size_t>(low.rank));
  });
  return {.jobs = 1,
          .scratch = scratch,
          .results = projector_rows * projector_cols * sizeof(float),
          .copies = m * n * sizeof(float)};
}

// Refuses options that set the periods themselves, or by which ranks could differ: periods grow by what a refresh
// finds, the same on every rank.
void check_lazy(Deck& deck, const OptimizerOptions& optimizer) {
  if (optimizer.matrix->as<GaloreOptions>().lazy_cosine == 0) return;
  const auto refuse = [&deck](const char* what) {
    deck.error("optimizer.lazy_cosine", fmt::format("conflicts with {}", what), "0");
  };
  if (optimizer.refresh.automatic) refuse("optimizer.refresh.every = \"auto\", which sets the periods");
  if (optimizer.refresh.budget != RefreshOptions::Budget::uniform)
    refuse("optimizer.refresh.budget, which sets the periods");
  if (optimizer.matrix->refresh_eager)
    refuse("optimizer.refresh.visibility = \"eager\": ranks would see other projectors at an update");
}

MatrixKind galore_kind() {
  MatrixKind kind = matrix_kind<GaloreOptions>("galore");
  kind.weight_decay = 0;
  kind.refresh_every = 200;
  kind.state = galore_fields;
  kind.work = galore_work;
  kind.refresh_needs = galore_needs;
  kind.weight_group = 256;  // as in Q-GaLore (arXiv 2407.08296)
  kind.checks = {[](Deck& deck, Options& options) {
    check_lazy(deck, options.optimizer);
    check_low_rank(deck, options, options.optimizer.matrix->as<GaloreOptions>());
  }};
  return kind;
}

}  // namespace

void register_galore() { register_matrix_kind<GaLore>(galore_kind()); }

}  // namespace sestina

#include "core/optimizer/methods/kl/kl_factors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/optimizer/base/sides.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

void KlOptions::fields(OptionFields& f) {
  constexpr DeckRange rate{.min = 0, .max = 1};
  f.number("beta1", beta1, rate);
  f.eps("eps", eps);
  f.number("factor_beta", factor_beta, rate);
  f.integer("max_dim", max_dim, {.min = 1});
  f.choice("eigenvalue_start", eigenvalue_start, {"gradient", "given"});
  f.number("initial_eigenvalue", initial_eigenvalue, {.min = 0, .open_min = true});
  f.flag("clamp", clamp);
  f.number("clamp_floor", clamp_floor);
  f.number("clamp_ceiling", clamp_ceiling);
  f.flag("sort", sort);
  f.choice("basis_first", basis_first, {"eigh", "svd"});
  f.choice("first_step", first_step, {"skip", "use"});
  f.choice("decay_order", decay_order, {"after", "before"});
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

double KlRule::ceiling(std::size_t d) const {
  return clamp ? std::max(clamp_floor, std::min(static_cast<double>(d), clamp_ceiling)) : 0;
}

template <class Space>
KlFactors<Space>::KlFactors(MatrixState<Space>& state, const MatrixOptions& options, const KlRule& rule,
                            std::size_t rows, std::size_t cols)
    : rule_(rule),
      rows_(rows),
      cols_(cols),
      sides_(state, options, rule.refresh.first, rule.matmul_precision, rows, cols),
      left_values_(state.vector("eigenvalue_left")),
      right_values_(state.vector("eigenvalue_right")) {}

namespace {

// The memory that an update holds: G Qr and Ql^T G Qr.
template <class Space>
struct RotatedGradient {
  RotatedGradient(Workspace<Space>& workspace, std::size_t m, std::size_t n)
      : half(workspace.template take<float>(m, n)), rotated(workspace.template take<float>(m, n)) {}
  Matrix<float, Space> half, rotated;
};

// What it holds in addition while the factors take in the gradient: sums of squares by rows and columns.
template <class Space>
struct LineSums {
  LineSums(Workspace<Space>& workspace, std::size_t m, std::size_t n)
      : left(workspace.template take<float>(m)), right(workspace.template take<float>(n)) {}
  Vector<float, Space> left, right;
};

// Returns the root mean square, at least the smallest number of single precision.
template <class Space>
double root_mean_square(Stream<Space>& stream, double scale, Matrix<const float, Space> x) {
  const double squares = sum_of_squares<Space, float>(stream.exec, flat<const float, Space>(x), stream.workspace);
  const double least = static_cast<double>(std::numeric_limits<float>::min());
  return std::max(least, scale * std::sqrt(squares / static_cast<double>(x.size())));
}

}  // namespace

template <class Space>
bool KlFactors<Space>::start(Stream<Space>& stream, std::int64_t updates, double gradient_scale,
                             Matrix<const float, Space> gradient) {
  const std::int64_t t = updates + (rule_.skips_first() ? 0 : 1);
  if (is_zero<Space>(stream, gradient) || !sides_.first_bases(stream, t, gradient)) return false;
  const double scale = rule_.starts_from_gradient() ? root_mean_square(stream, gradient_scale, gradient) : 1;
  const double eigenvalue = rule_.starts_from_gradient() ? scale : rule_.initial_eigenvalue;
  fill_values<Space>(stream.exec, eigenvalue, left_values_);
  fill_values<Space>(stream.exec, eigenvalue, right_values_);
  if (!rule_.skips_first()) return true;
  const double weight = (1 - rule_.factor_beta) * gradient_scale * gradient_scale / scale;
  const auto left = static_cast<float>(weight / static_cast<double>(cols_));
  const auto right = static_cast<float>(weight / static_cast<double>(rows_));
  const auto left_factor = sides_.left.factor.write(), right_factor = sides_.right.factor.write();
  const Products<Space> products = sides_.products(stream);
  products.symmetric(Op::none, left, gradient, 0, left_factor.view());
  products.symmetric(Op::transpose, right, gradient, 0, right_factor.view());
  return true;
}

template <class Space>
typename KlFactors<Space>::Roots KlFactors<Space>::roots(Stream<Space>& stream) const {
  const Roots roots(stream.workspace, rows_, cols_);
  inverse_square_roots<Space>(stream.exec, left_values_, roots.left);
  inverse_square_roots<Space>(stream.exec, right_values_, roots.right);
  return roots;
}

template <class Space>
void KlFactors<Space>::rotate(Stream<Space>& stream, double gradient_scale, Matrix<const float, Space> gradient,
                              Matrix<float, Space> half, Matrix<float, Space> rotated) const {
  sides_.rotate(stream, static_cast<float>(gradient_scale), gradient, half, rotated);
}

template <class Space>
void KlFactors<Space>::accumulate(Stream<Space>& stream, double gradient_scale, const Roots& roots,
                                  Matrix<const float, Space> gradient, Matrix<float, Space> half,
                                  Matrix<float, Space> rotated) {
  const auto frame = stream.workspace.frame();
  const double beta = rule_.factor_beta, m = static_cast<double>(rows_), n = static_cast<double>(cols_);
  const LineSums<Space> sums(stream.workspace, rows_, cols_);
  const Vector<float, Space> left = sums.left, right = sums.right;
  row_squares<Space>(stream.exec, rotated, roots.right, left);
  column_squares<Space>(stream.exec, rotated, roots.left, right, stream.workspace);
  average_eigenvalues<Space>(stream.exec, beta, n, rule_.ceiling(rows_), left, left_values_);
  average_eigenvalues<Space>(stream.exec, beta, m, rule_.ceiling(cols_), right, right_values_);

  const auto keep = static_cast<float>(beta);
  const auto left_factor = sides_.left.factor.write(), right_factor = sides_.right.factor.write();
  scale_lines<Space>(stream.exec, {}, roots.right, half);
  const Products<Space> products = sides_.products(stream);
  products.symmetric(Op::none, static_cast<float>((1 - beta) / n), half, keep, left_factor.view());
  products.multiply(Op::transpose, Op::none, static_cast<float>(gradient_scale), sides_.left.basis.read(), gradient, 0,
                    half);
  scale_lines<Space>(stream.exec, roots.left, {}, half);
  products.symmetric(Op::transpose, static_cast<float>((1 - beta) / m), half, keep, right_factor.view());
}

template <class Space>
void KlFactors<Space>::refresh(Stream<Space>& stream, const typename TwoSided<Space>::Point& point,
                               Matrix<float, Space> second_moment) {
  sides_.refresh(stream, rule_.refresh, point, {second_moment, left_values_, right_values_});
}

namespace {

template <bool HasSecondMoment>
std::vector<FieldSize> kl_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}};
  if (HasSecondMoment) fields.push_back({"second_moment", DType::f32, rows, cols});
  add_squares(fields, "factor", {}, rows, cols);
  add_squares(fields, "basis", {}, rows, cols, FieldUse::result);
  add_vectors(fields, "eigenvalue", {}, rows, cols);
  add_counters(fields, {});
  add_jobs(fields, options, Sides{}, rows, cols);
  add_drift(fields, options, Sides{});
  set_of_basis(fields, {"basis_left", "basis_right", "second_moment", "eigenvalue_left", "eigenvalue_right"});
  return fields;
}

}  // namespace

void fill_kl_kind(MatrixKind& kind, bool second_moment) {
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.state = second_moment ? kl_fields<true> : kl_fields<false>;
  kind.keeps_skew = [](const MatrixOptions&) { return true; };
  kind.width_power = [](const MatrixOptions&) { return std::optional(0.5); };
}

UpdateWork kl_work(BasisForm first, std::int64_t rows, std::int64_t cols, double per_product) {
  UpdateWork work = side_work({}, rows, cols, per_product, qr_step);
  work.first_bases = first_bases_work(first, {}, rows, cols);
  return work;
}

template <class Space>
void declare_kl_update(Workspace<Space>& workspace, const MatrixOptions& options, const KlRule& rule, std::size_t rows,
                       std::size_t cols) {
  const Sides sides = sides_with_bases(fields_of(options, rows, cols));
  declare_first_bases<Space>(workspace, rule.refresh.first, sides, rows, cols);
  declare_side_refreshes<Space>(workspace, sides, rule.refresh, rows, cols);
  const auto frame = workspace.frame();
  const RotatedGradient<Space> gradient(workspace, rows, cols);
  const typename KlFactors<Space>::Roots roots(workspace, rows, cols);
  const LineSums<Space> sums(workspace, rows, cols);
  declare_products<Space>(workspace, rule.matmul_precision, rows, cols);
  declare<ColumnSquaresScratch<Space>>(workspace, rows, cols);
}

template <class Space>
KlMethod<Space>::KlMethod(const Space& exec, const MatrixOptions& options, const KlRule& rule, const MatrixShape& shape)
    : rule_(rule),
      shape_(shape),
      state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
      factors_(state_, options, rule_, shape.rows, shape.cols),
      momentum_(state_.matrix("momentum")),
      updates_(state_.counter("updates")),
      started_(state_.counter("started")) {}

template <class Space>
void KlMethod<Space>::step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
  if (started_ == 0) {
    started_ = factors_.start(stream, updates_, now.gradient_scale, matrix.gradient) ? 1 : 0;
    if (started_ == 0 || rule_.skips_first()) return round_matrix<Space>(stream.exec, matrix.master, matrix.weight);
  }
  ++updates_;
  {
    const auto frame = stream.workspace.frame();
    const RotatedGradient<Space> p(stream.workspace, shape_.rows, shape_.cols);
    update(stream, now, matrix, factors_.roots(stream), p.half, p.rotated);
  }
  refresh(stream);
}

template <class Space>
bool KlMethod<Space>::repeats(const RefreshPolicy& policy) {
  return started_ != 0 && !factors_.sides().by_drift() &&
         !refresh_due(updates_ + 1, rule_.refresh_every, shape_.index, policy);
}

template <class Space>
void KlMethod<Space>::refresh(Stream<Space>& stream) {
  const bool due = refresh_due(updates_, rule_.refresh_every, shape_.index, stream.refresh.policy);
  factors_.refresh(stream, {updates_, due, stream.refresh.policy.is_in_update(shape_.index)}, second_moment());
}

template <class Space>
void KlMethod<Space>::rotate_momentum(Stream<Space>& stream, double gradient_scale, Matrix<const float, Space> gradient,
                                      Matrix<float, Space> half, Matrix<float, Space> rotated) {
  average_momentum<Space>(stream.exec, rule_.beta1, gradient_scale, flat<const float, Space>(gradient),
                          flat<float, Space>(momentum_));
  factors_.sides().rotate(stream, 1, momentum_, half, rotated);
}

template <class Space>
void KlMethod<Space>::move(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix,
                           Matrix<float, Space> rotated, Matrix<float, Space> half) {
  const Matrix<float, Space> direction = factors_.sides().rotate_back(stream, rotated, half);
  move_weight<Space, float>(
      stream.exec, {now.lr, 1, now.weight_decay, rule_.decay_order == Order::before, stream.nonfinite},
      flat<float, Space>(direction), flat<float, Space>(matrix.master), flat<bf16, Space>(matrix.weight));
}

#define SESTINA_KL_FACTORS(Space)                                                                             \
  template void declare_kl_update<Space>(Workspace<Space>&, const MatrixOptions&, const KlRule&, std::size_t, \
                                         std::size_t);                                                        \
  template class KlFactors<Space>;                                                                            \
  template class KlMethod<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_KL_FACTORS)

}  // namespace sestina

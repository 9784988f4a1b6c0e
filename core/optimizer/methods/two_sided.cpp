#include "core/optimizer/methods/two_sided.hpp"

#include <algorithm>

#include "core/optimizer/refresh/basis_drift.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

template <class Space>
bool is_zero(Stream<Space>& stream, Matrix<const float, Space> x) {
  return sum_of_squares<Space, float>(stream.exec, flat<const float, Space>(x), stream.workspace) == 0;
}

namespace {

// An operand in bf16, held until the caller's frame ends.
template <class Space>
Matrix<const bf16, Space> rounded(Stream<Space>& stream, Matrix<const float, Space> x) {
  const auto y = stream.workspace.template take<bf16>(x.extent(0), x.extent(1));
  round_matrix<Space>(stream.exec, x, y);
  return y;
}

}  // namespace

template <class Space>
void Products<Space>::multiply(Op op_a, Op op_b, float alpha, Matrix<const float, Space> a,
                               Matrix<const float, Space> b, float beta, Matrix<float, Space> c) const {
  if (precision != MatmulPrecision::bf16) {
    const ProductPrecision<Space> held(stream.gemm, precision);
    return sestina::multiply<Space>(stream, op_a, op_b, alpha, a, b, beta, c);
  }
  const auto frame = stream.workspace.frame();
  const Matrix<const bf16, Space> left = rounded(stream, a), right = rounded(stream, b);
  stream.gemm.template operator()<bf16, float>(op_a, op_b, alpha, left, right, beta, c);
}

template <class Space>
void Products<Space>::symmetric(Op op, float alpha, Matrix<const float, Space> a, float beta,
                                Matrix<float, Space> c) const {
  if (precision != MatmulPrecision::bf16) {
    const ProductPrecision<Space> held(stream.gemm, precision);
    return stream.gemm.template symmetric<float, float>(op, alpha, a, beta, c);
  }
  const auto frame = stream.workspace.frame();
  stream.gemm.template symmetric<bf16, float>(op, alpha, rounded(stream, a), beta, c);
}

template <class Space>
void declare_products(Workspace<Space>& workspace, MatmulPrecision precision, std::size_t rows, std::size_t cols) {
  if (precision != MatmulPrecision::bf16) return;
  const std::size_t side = std::max(rows, cols);
  const auto frame = workspace.frame();
  workspace.template take<bf16>(rows, cols);
  workspace.template take<bf16>(side, side);
}

template <class Space>
TwoSided<Space>::TwoSided(MatrixState<Space>& state, const MatrixOptions& options, BasisForm first,
                          MatmulPrecision precision, std::size_t rows, std::size_t cols)
    : rows_(rows), cols_(cols), form_(first), precision_(precision), port_(state, options, sides_of(state)) {}

template <class Space>
std::vector<RefreshSide> TwoSided<Space>::sides_of(MatrixState<Space>& state) {
  std::vector<RefreshSide> sides;
  for (const bool is_left : {true, false}) {
    Side<Space>& side = is_left ? left : right;
    const std::string suffix = is_left ? "_left" : "_right";
    side.name = state.path() + "/factor" + suffix;
    if (!state.has("basis" + suffix)) continue;
    side.basis = state.array("basis" + suffix);
    side.failures = &state.counter("failures" + suffix);
    if (state.has("drifted" + suffix)) side.drifted = &state.counter("drifted" + suffix);
    if (state.has("factor" + suffix)) side.factor = state.array("factor" + suffix);
    side.number = sides.size();
    sides.push_back({.name = side.name,
                     .snapshot = "snapshot" + suffix,
                     .failures = side.failures,
                     .room = {.basis = side.basis.size(), .order = side.basis.extent(0)},
                     .d = side.basis.extent(0)});
  }
  return sides;
}

template <class Space>
void TwoSided<Space>::rotate(Stream<Space>& stream, float alpha, Matrix<const float, Space> x,
                             Matrix<float, Space> scratch, Matrix<float, Space> out) const {
  const Products<Space> p = products(stream);
  if (!left.on()) return p.multiply(Op::none, Op::none, alpha, x, right.basis.read(), 0, out);
  if (!right.on()) return p.multiply(Op::transpose, Op::none, alpha, left.basis.read(), x, 0, out);
  p.multiply(Op::none, Op::none, alpha, x, right.basis.read(), 0, scratch);
  p.multiply(Op::transpose, Op::none, 1, left.basis.read(), scratch, 0, out);
}

template <class Space>
Matrix<float, Space> TwoSided<Space>::rotate_back(Stream<Space>& stream, Matrix<float, Space> d,
                                                  Matrix<float, Space> scratch) const {
  const Products<Space> p = products(stream);
  if (right.on()) {
    p.multiply(Op::none, Op::transpose, 1, d, right.basis.read(), 0, scratch);
    std::swap(d, scratch);
  }
  if (!left.on()) return d;
  p.multiply(Op::none, Op::none, 1, left.basis.read(), d, 0, scratch);
  return scratch;
}

template <class Space>
void TwoSided<Space>::accumulate(Stream<Space>& stream, double keep, double add,
                                 Matrix<const float, Space> gradient) const {
  const auto alpha = static_cast<float>(add), beta = static_cast<float>(keep);
  const auto left_factor = left.factor.write(), right_factor = right.factor.write();
  const Products<Space> p = products(stream);
  if (left.factor.size() > 0) p.symmetric(Op::none, alpha, gradient, beta, left_factor.view());
  if (right.factor.size() > 0) p.symmetric(Op::transpose, alpha, gradient, beta, right_factor.view());
}

template <class Space>
bool TwoSided<Space>::first_bases(Stream<Space>& stream, std::int64_t t, Matrix<const float, Space> gradient) {
  const auto left_basis = left.basis.write(), right_basis = right.basis.write();
  if (!cold_bases<Space>(stream, form_, gradient, left_basis.view(), right_basis.view())) return false;
  port_.renew(t);
  return true;
}

// The result for one side: the order of its old columns where they moved, else nothing.
template <class Space>
struct TwoSided<Space>::Moved {
  bool is_new = false;
  Vector<const std::int32_t, Space> order = {};
};

template <class Space>
typename TwoSided<Space>::Moved TwoSided<Space>::refresh_side(Stream<Space>& stream, const RefreshRule& rule,
                                                              const Point& point, const Side<Space>& side,
                                                              Matrix<const float, Space> factor,
                                                              Vector<std::int32_t, Space> order) {
  if (!side.on()) return {};
  const bool sorted = rule.sorts();
  RefreshRequest<Space> request{.job = {.method = rule.method, .name = side.name, .shift = rule.shift},
                                .basis = side.basis};
  request.job.factor = factor.extent(0) > 0 ? factor : side.factor.read();
  if (sorted) request.job.order = order;
  const bool due = side.drifted != nullptr ? is_drifted(side) : point.due;
  const Due when = !due ? Due::no : point.in_update ? Due::here : Due::now;
  const Refreshed result = port_.at(stream, side.number, point.t, when, [&request](std::int64_t) { return request; });
  if (side.drifted != nullptr) {
    *side.drifted = 0;
    stream.refresh.drift.found.sides += result == Refreshed::done ? 1 : 0;
    if (point.due) {
      const SecondsSpent spent(stream.refresh.seconds.waits);
      basis_drift<Space>(stream, request.job.factor, side.basis.read(), stream.refresh.drift.start(*side.drifted));
      stream.refresh.drift.finish(stream.exec);
    }
  }
  if (result != Refreshed::done) return {};
  if (sorted && rule.permute) return {true, order};
  return {true, {}};
}

namespace {

// The memory that refresh() holds: the order of the columns of both sides.
template <class Space>
struct ColumnOrders {
  ColumnOrders(Workspace<Space>& workspace, std::size_t rows, std::size_t cols)
      : left(workspace.template take<std::int32_t>(rows)), right(workspace.template take<std::int32_t>(cols)) {}
  Vector<std::int32_t, Space> left, right;
};

}  // namespace

template <class Space>
bool TwoSided<Space>::refresh(Stream<Space>& stream, const RefreshRule& rule, const Point& point,
                              const InBasis& in_basis, Matrix<const float, Space> left_factor,
                              Matrix<const float, Space> right_factor) {
  port_.pass(point.t);
  if (!point.due && !port_.in_flight() && !is_drifted(left) && !is_drifted(right)) return false;
  const auto frame = stream.workspace.frame();
  const ColumnOrders<Space> orders(stream.workspace, rows_, cols_);
  const Moved rows = refresh_side(stream, rule, point, left, left_factor, orders.left);
  const Moved cols = refresh_side(stream, rule, point, right, right_factor, orders.right);
  if (!rows.is_new && !cols.is_new) return false;
  const Matrix<float, Space> scratch = MatrixScratch<Space>(stream.workspace, rows_, cols_).values;
  const auto column = [](Vector<float, Space> x) { return Matrix<float, Space>(x.data(), x.extent(0), 1); };
  const auto part = [&](std::size_t n) { return Matrix<float, Space>(scratch.data(), n, 1); };
  if (in_basis.moments.size() > 0) permute<Space>(stream.exec, rows.order, cols.order, in_basis.moments, scratch);
  if (in_basis.left.size() > 0) permute<Space>(stream.exec, rows.order, {}, column(in_basis.left), part(rows_));
  if (in_basis.right.size() > 0) permute<Space>(stream.exec, cols.order, {}, column(in_basis.right), part(cols_));
  return true;
}

RefreshNeeds two_sided_needs(const MatrixOptions& options, Sides sides, const RefreshRule& rule, std::int64_t rows,
                             std::int64_t cols) {
  RefreshNeeds needs;
  auto counter = Workspace<Serial>::counter();
  const auto add = [&](std::int64_t side) {
    const auto d = static_cast<std::size_t>(side);
    ++needs.jobs;
    declare_packed_job(counter, rule.method, d, rule.sorts());
    needs.results += d * d * sizeof(float);
    needs.orders += d * sizeof(std::int32_t);
    needs.copies += bytes_of(packed_snapshot(options, "snapshot", side));
  };
  if (sides.left) add(rows);
  if (sides.right) add(cols);
  needs.scratch = counter.peak();
  return needs;
}

template <class Space>
void declare_first_bases(Workspace<Space>& workspace, BasisForm form, Sides sides, std::size_t rows, std::size_t cols) {
  declare<SumScratch<Space>>(workspace, rows * cols);
  declare_cold_bases<Space>(workspace, form, rows, cols, sides.left ? rows : 0, sides.right ? cols : 0);
}

template <class Space>
void declare_side_refreshes(Workspace<Space>& workspace, Sides sides, const RefreshRule& rule, std::size_t rows,
                            std::size_t cols) {
  const auto frame = workspace.frame();
  const ColumnOrders<Space> orders(workspace, rows, cols);
  const auto side = [&](std::size_t d) {
    declare_refresh<Space>(workspace, rule.method, d, rule.sorts());
    declare_basis_drift<Space>(workspace, d);
  };
  if (sides.left) side(rows);
  if (sides.right) side(cols);
  declare<MatrixScratch<Space>>(workspace, rows, cols);
}

#define SESTINA_TWO_SIDED(Space)                                                                                       \
  template struct Products<Space>;                                                                                     \
  template void declare_products<Space>(Workspace<Space>&, MatmulPrecision, std::size_t, std::size_t);                 \
  template bool is_zero<Space>(Stream<Space>&, Matrix<const float, Space>);                                            \
  template void declare_first_bases<Space>(Workspace<Space>&, BasisForm, Sides, std::size_t, std::size_t);             \
  template void declare_side_refreshes<Space>(Workspace<Space>&, Sides, const RefreshRule&, std::size_t, std::size_t); \
  template class TwoSided<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_TWO_SIDED)

}  // namespace sestina

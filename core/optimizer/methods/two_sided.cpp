#include "core/optimizer/methods/two_sided.hpp"

#include <algorithm>

#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
bool is_zero(Stream<Space>& stream, Matrix<const float, Space> x) {
  return sum_of_squares<Space, float>(stream.exec, flat<const float, Space>(x), stream.workspace) == 0;
}

template <class Space>
TwoSided<Space>::TwoSided(MatrixState<Space>& state, const MatrixOptions& options, BasisForm first, std::size_t rows,
                          std::size_t cols)
    : rows_(rows), cols_(cols), form_(first), port_(state, options, sides_of(state)) {}

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
    if (state.has("factor" + suffix)) side.factor = state.array("factor" + suffix);
    side.number = sides.size();
    sides.push_back({.name = side.name,
                     .snapshot = "snapshot" + suffix,
                     .failures = side.failures,
                     .room = {.basis = side.basis.size(), .order = side.basis.extent(0)}});
  }
  return sides;
}

template <class Space>
void TwoSided<Space>::rotate(Stream<Space>& stream, float alpha, Matrix<const float, Space> x,
                             Matrix<float, Space> scratch, Matrix<float, Space> out) const {
  if (!left.on()) return multiply<Space>(stream, Op::none, Op::none, alpha, x, right.basis.read(), 0, out);
  if (!right.on()) return multiply<Space>(stream, Op::transpose, Op::none, alpha, left.basis.read(), x, 0, out);
  multiply<Space>(stream, Op::none, Op::none, alpha, x, right.basis.read(), 0, scratch);
  multiply<Space>(stream, Op::transpose, Op::none, 1, left.basis.read(), scratch, 0, out);
}

template <class Space>
Matrix<float, Space> TwoSided<Space>::rotate_back(Stream<Space>& stream, Matrix<float, Space> d,
                                                  Matrix<float, Space> scratch) const {
  if (right.on()) {
    multiply<Space>(stream, Op::none, Op::transpose, 1, d, right.basis.read(), 0, scratch);
    std::swap(d, scratch);
  }
  if (!left.on()) return d;
  multiply<Space>(stream, Op::none, Op::none, 1, left.basis.read(), d, 0, scratch);
  return scratch;
}

template <class Space>
void TwoSided<Space>::accumulate(Stream<Space>& stream, double keep, double add,
                                 Matrix<const float, Space> gradient) const {
  const auto alpha = static_cast<float>(add), beta = static_cast<float>(keep);
  const auto left_factor = left.factor.write(), right_factor = right.factor.write();
  if (left.factor.size() > 0)
    stream.gemm.template symmetric<float, float>(Op::none, alpha, gradient, beta, left_factor.view());
  if (right.factor.size() > 0)
    stream.gemm.template symmetric<float, float>(Op::transpose, alpha, gradient, beta, right_factor.view());
}

template <class Space>
bool TwoSided<Space>::first_bases(Stream<Space>& stream, std::int64_t t, Matrix<const float, Space> gradient) {
  if (!rotates()) return true;
  const auto left_basis = left.basis.write(), right_basis = right.basis.write();
  if (!cold_bases<Space>(stream, form_, gradient, left_basis.view(), right_basis.view())) return false;
  port_.renew(t);
  return true;
}

// What became of one side: order of its old columns where they moved, else nothing.
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
  const bool sorted = rule.sort && rule.method == RefreshMethod::power_qr;
  RefreshRequest<Space> request{.job = {.method = rule.method, .name = side.name}, .basis = side.basis};
  request.job.factor = factor.extent(0) > 0 ? factor : side.factor.read();
  if (sorted) request.job.order = order;
  const Refreshed result = port_.at(stream, side.number, point.t, point.due ? Due::now : Due::no,
                                    [&request](std::int64_t) { return request; });
  if (result != Refreshed::done) return {};
  if (sorted && rule.permute) return {true, order};
  return {true, {}};
}

template <class Space>
bool TwoSided<Space>::refresh(Stream<Space>& stream, const RefreshRule& rule, const Point& point,
                              const InBasis& in_basis, Matrix<const float, Space> left_factor,
                              Matrix<const float, Space> right_factor) {
  port_.pass(point.t);
  if (!point.due && !port_.in_flight()) return false;
  const auto frame = stream.workspace.frame();
  const auto left_order = stream.workspace.template take<std::int32_t>(rows_);
  const auto right_order = stream.workspace.template take<std::int32_t>(cols_);
  const Moved rows = refresh_side(stream, rule, point, left, left_factor, left_order);
  const Moved cols = refresh_side(stream, rule, point, right, right_factor, right_order);
  if (!rows.is_new && !cols.is_new) return false;
  const Matrix<float, Space> scratch = stream.workspace.template take<float>(rows_, cols_);
  const auto column = [](Vector<float, Space> x) { return Matrix<float, Space>(x.data(), x.extent(0), 1); };
  const auto part = [&](std::size_t n) { return Matrix<float, Space>(scratch.data(), n, 1); };
  if (in_basis.moments.size() > 0) permute<Space>(stream.exec, rows.order, cols.order, in_basis.moments, scratch);
  if (in_basis.left.size() > 0) permute<Space>(stream.exec, rows.order, {}, column(in_basis.left), part(rows_));
  if (in_basis.right.size() > 0) permute<Space>(stream.exec, cols.order, {}, column(in_basis.right), part(cols_));
  return true;
}

RefreshNeeds two_sided_needs(Sides sides, RefreshMethod method, std::int64_t rows, std::int64_t cols) {
  RefreshNeeds needs;
  const auto add = [&](std::int64_t side) {
    const auto d = static_cast<std::size_t>(side);
    ++needs.jobs;
    needs.scratch = std::max(needs.scratch, refresh_workspace_bytes<Serial>(method, d));
    needs.results += d * d * sizeof(float);
    needs.orders += d * sizeof(std::int32_t);
    needs.copies += 2 * d * d * sizeof(float);
  };
  if (sides.left) add(rows);
  if (sides.right) add(cols);
  return needs;
}

template <class Space>
std::size_t first_bases_bytes(BasisForm form, Sides sides, std::size_t rows, std::size_t cols) {
  const std::size_t check = reduce_workspace_bytes<Space>(rows * cols);
  if (!sides.left && !sides.right) return check;
  return std::max(check,
                  cold_bases_workspace_bytes<Space>(form, rows, cols, sides.left ? rows : 0, sides.right ? cols : 0));
}

template <class Space>
std::size_t refresh_bytes(Sides sides, const RefreshRule& rule, std::size_t rows, std::size_t cols) {
  using W = Workspace<Space>;
  if (!sides.left && !sides.right) return 0;
  const std::size_t jobs = std::max(sides.left ? refresh_workspace_bytes<Space>(rule.method, rows) : 0,
                                    sides.right ? refresh_workspace_bytes<Space>(rule.method, cols) : 0);
  return W::template bytes<std::int32_t>(rows) + W::template bytes<std::int32_t>(cols) +
         std::max(jobs, W::template bytes<float>(rows * cols));
}

#define SESTINA_TWO_SIDED(Space)                                                                  \
  template bool is_zero<Space>(Stream<Space>&, Matrix<const float, Space>);                       \
  template std::size_t first_bases_bytes<Space>(BasisForm, Sides, std::size_t, std::size_t);      \
  template std::size_t refresh_bytes<Space>(Sides, const RefreshRule&, std::size_t, std::size_t); \
  template class TwoSided<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_TWO_SIDED)

}  // namespace sestina

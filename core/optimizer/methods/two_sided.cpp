#include "core/optimizer/methods/two_sided.hpp"

#include <algorithm>

#include "kernels/blas/reduce.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
bool is_zero(Lane<Space>& lane, Matrix<const float, Space> x) {
  return sum_of_squares<Space, float>(lane.exec, flat<const float, Space>(x), lane.workspace) == 0;
}

template <class Space>
TwoSided<Space>::TwoSided(MatrixState<Space>& state, std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols) {
  for (const bool is_left : {true, false}) {
    Side<Space>& side = is_left ? left : right;
    const std::string suffix = is_left ? "_left" : "_right";
    side.name = state.path() + "/factor" + suffix;
    if (!state.has("basis" + suffix)) continue;
    side.basis = state.matrix("basis" + suffix);
    side.failures = &state.counter("failures" + suffix);
    if (state.has("factor" + suffix)) side.factor = state.matrix("factor" + suffix);
  }
}

template <class Space>
void TwoSided<Space>::rotate(Lane<Space>& lane, float alpha, Matrix<const float, Space> x, Matrix<float, Space> scratch,
                             Matrix<float, Space> out) const {
  if (!left.on()) return multiply<Space>(lane, Op::none, Op::none, alpha, x, right.basis, 0, out);
  if (!right.on()) return multiply<Space>(lane, Op::transpose, Op::none, alpha, left.basis, x, 0, out);
  multiply<Space>(lane, Op::none, Op::none, alpha, x, right.basis, 0, scratch);
  multiply<Space>(lane, Op::transpose, Op::none, 1, left.basis, scratch, 0, out);
}

template <class Space>
Matrix<float, Space> TwoSided<Space>::rotate_back(Lane<Space>& lane, Matrix<float, Space> d,
                                                  Matrix<float, Space> scratch) const {
  if (right.on()) {
    multiply<Space>(lane, Op::none, Op::transpose, 1, d, right.basis, 0, scratch);
    std::swap(d, scratch);
  }
  if (!left.on()) return d;
  multiply<Space>(lane, Op::none, Op::none, 1, left.basis, d, 0, scratch);
  return scratch;
}

template <class Space>
void TwoSided<Space>::accumulate(Lane<Space>& lane, double keep, double add,
                                 Matrix<const float, Space> gradient) const {
  const auto alpha = static_cast<float>(add), beta = static_cast<float>(keep);
  if (left.factor.extent(0) > 0)
    lane.gemm.template symmetric<float, float>(Op::none, alpha, gradient, beta, left.factor);
  if (right.factor.extent(0) > 0)
    lane.gemm.template symmetric<float, float>(Op::transpose, alpha, gradient, beta, right.factor);
}

template <class Space>
bool TwoSided<Space>::first_bases(Lane<Space>& lane, Matrix<const float, Space> gradient) const {
  if (!rotates()) return true;
  return cold_bases<Space>(lane, gradient, left.basis, right.basis);
}

namespace {

// Refreshes one side; the order of its old columns where they moved, else nothing.
template <class Space>
Vector<const std::int32_t, Space> refresh_side(Lane<Space>& lane, const RefreshRule& rule, const Side<Space>& side,
                                               Matrix<const float, Space> factor, Vector<std::int32_t, Space> order) {
  if (!side.on()) return {};
  RefreshJob<Space> job;
  job.method = rule.method;
  job.name = side.name;
  job.factor = factor.extent(0) > 0 ? factor : Matrix<const float, Space>(side.factor);
  job.basis = side.basis;
  const bool sorted = rule.sort && rule.method == RefreshMethod::power_qr;
  if (sorted) job.order = order;
  const Refreshed result = refresh<Space>(lane, job, *side.failures);
  if (result == Refreshed::done && sorted && rule.permute) return order;
  return {};
}

}  // namespace

template <class Space>
void TwoSided<Space>::refresh(Lane<Space>& lane, const RefreshRule& rule, const InBasis& in_basis,
                              Matrix<const float, Space> left_factor, Matrix<const float, Space> right_factor) const {
  const auto frame = lane.workspace.frame();
  const auto left_order = lane.workspace.template take<std::int32_t>(rows_);
  const auto right_order = lane.workspace.template take<std::int32_t>(cols_);
  const auto rows = refresh_side<Space>(lane, rule, left, left_factor, left_order);
  const auto cols = refresh_side<Space>(lane, rule, right, right_factor, right_order);
  const Matrix<float, Space> scratch = lane.workspace.template take<float>(rows_, cols_);
  const auto column = [](Vector<float, Space> x) { return Matrix<float, Space>(x.data(), x.extent(0), 1); };
  const auto part = [&](std::size_t n) { return Matrix<float, Space>(scratch.data(), n, 1); };
  if (in_basis.moments.size() > 0) permute<Space>(lane.exec, rows, cols, in_basis.moments, scratch);
  if (in_basis.left.size() > 0) permute<Space>(lane.exec, rows, {}, column(in_basis.left), part(rows_));
  if (in_basis.right.size() > 0) permute<Space>(lane.exec, cols, {}, column(in_basis.right), part(cols_));
}

template <class Space>
std::size_t TwoSided<Space>::first_bases_bytes() const {
  const std::size_t check = reduce_workspace_bytes<Space>(rows_ * cols_);
  return rotates() ? std::max(check, cold_bases_workspace_bytes<Space>(rows_, cols_)) : check;
}

template <class Space>
std::size_t TwoSided<Space>::refresh_bytes(const RefreshRule& rule) const {
  using W = Workspace<Space>;
  if (!rotates()) return 0;
  const std::size_t jobs = std::max(left.on() ? refresh_workspace_bytes<Space>(rule.method, rows_) : 0,
                                    right.on() ? refresh_workspace_bytes<Space>(rule.method, cols_) : 0);
  return W::template bytes<std::int32_t>(rows_) + W::template bytes<std::int32_t>(cols_) +
         std::max(jobs, W::template bytes<float>(rows_ * cols_));
}

#define SESTINA_TWO_SIDED(Space)                                          \
  template bool is_zero<Space>(Lane<Space>&, Matrix<const float, Space>); \
  template class TwoSided<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_TWO_SIDED)

}  // namespace sestina

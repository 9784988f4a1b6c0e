// Bases of basis rotation from the first moment (rotated_adam.hpp).
#include <algorithm>

#include "core/optimizer/methods/rotated_adam.hpp"
#include "kernels/blas/elementwise.hpp"
#include "kernels/blas/matrix_copy.hpp"
#include "kernels/optimizer/columns.hpp"

namespace sestina {
namespace {

// One power step from the published basis with K = M M^T or M^T M, as from factors.
template <class Space>
bool power_step(Stream<Space>& stream, TwoSided<Space>& sides, const RotatedAdamRule& rule,
                const typename TwoSided<Space>::Point& point, Matrix<const float, Space> momentum,
                Matrix<float, Space> second_moment) {
  const auto frame = stream.workspace.frame();
  Matrix<float, Space> left, right;
  if (point.due && sides.left.on()) {
    left = stream.workspace.template take<float>(momentum.extent(0), momentum.extent(0));
    stream.gemm.template symmetric<float, float>(Op::none, 1, momentum, 0, left);
  }
  if (point.due && sides.right.on()) {
    right = stream.workspace.template take<float>(momentum.extent(1), momentum.extent(1));
    stream.gemm.template symmetric<float, float>(Op::transpose, 1, momentum, 0, right);
  }
  return sides.refresh(stream, rule.refresh, point, {second_moment, {}, {}}, left, right);
}

// One side as published: Q = qr(P) with P = op(M) times the other side's old basis, or P = op(M) where that side is not
// rotated, the columns of P by falling norm. P has as many rows as Q; a P with fewer columns is filled up with zeros,
// whose columns of Q complete the basis.
template <class Space>
struct PublishedSide {
  const Side<Space>& side;
  const Side<Space>& other;
  Op op;                                   // of M
  Matrix<float, Space> product = {};       // (d, e)
  Vector<std::int32_t, Space> order = {};  // (e)

  void prepare(Stream<Space>& stream, Matrix<const float, Space> momentum) {
    const bool plain = op == Op::none;
    const std::size_t d = momentum.extent(plain ? 0 : 1), e = momentum.extent(plain ? 1 : 0);
    product = stream.workspace.template take<float>(d, e);
    order = stream.workspace.template take<std::int32_t>(e);
    const auto frame = stream.workspace.frame();
    const Vector<double, Space> squares = stream.workspace.template take<double>(e);
    if (other.on())
      multiply<Space>(stream, op, Op::none, 1, momentum, other.basis.read(), 0, product);
    else
      copy_matrix<Space>(stream.exec, !plain, momentum, product);
    column_dots<Space, float>(stream.exec, product, product, squares);
    order_falling<Space>(stream.exec, squares, order);
  }

  // A failure leaves the basis, and nothing is to be permuted.
  bool finish(Stream<Space>& stream) {
    const std::size_t d = product.extent(0);
    const auto frame = stream.workspace.frame();
    const Matrix<float, Space> factor = stream.workspace.template take<float>(d, d);
    const Matrix<float, Space> basis = stream.workspace.template take<float>(d, d);
    gather_columns<Space>(stream.exec, product, order, factor);
    set_identity<Space>(stream.exec, basis);
    RefreshJob<Space> job;
    job.name = side.name;
    job.factor = factor;
    job.basis = job.new_basis = basis;
    const bool good = refresh<Space>(stream, job, *side.failures) == Refreshed::done;
    const auto published = side.basis.write();
    if (good)
      copy_matrix<Space>(stream.exec, false, basis, published.view());
    else
      order = {};
    return good;
  }
};

// Both sides read the other's old basis. The second moment is permuted along the axis whose basis was sorted, whether
// that axis is rotated or not. False: a side keeps its old basis.
template <class Space>
bool published_step(Stream<Space>& stream, const TwoSided<Space>& sides, Matrix<const float, Space> momentum,
                    Matrix<float, Space> second_moment) {
  const auto frame = stream.workspace.frame();
  PublishedSide<Space> left{sides.left, sides.right, Op::none}, right{sides.right, sides.left, Op::transpose};
  if (sides.left.on()) left.prepare(stream, momentum);
  if (sides.right.on()) right.prepare(stream, momentum);
  const bool left_good = !sides.left.on() || left.finish(stream);
  const bool right_good = !sides.right.on() || right.finish(stream);
  const auto inner = stream.workspace.frame();
  const Matrix<float, Space> scratch = stream.workspace.template take<float>(momentum.extent(0), momentum.extent(1));
  permute<Space>(stream.exec, right.order, left.order, second_moment, scratch);
  return left_good && right_good;
}

}  // namespace

template <class Space>
bool refresh_from_momentum(Stream<Space>& stream, TwoSided<Space>& sides, const RotatedAdamRule& rule,
                           const typename TwoSided<Space>::Point& point, Matrix<const float, Space> momentum,
                           Matrix<float, Space> second_moment) {
  if (!rule.release) return power_step<Space>(stream, sides, rule, point, momentum, second_moment);
  if (!point.due) return false;
  if (published_step<Space>(stream, sides, momentum, second_moment)) sides.renew(point.t);
  return true;
}

template <class Space>
std::size_t refresh_from_momentum_bytes(Sides sides, const RotatedAdamRule& rule, std::size_t rows, std::size_t cols) {
  using W = Workspace<Space>;
  const std::size_t left = sides.left ? W::template bytes<float>(rows * rows) : 0;
  const std::size_t right = sides.right ? W::template bytes<float>(cols * cols) : 0;
  if (!rule.release) return left + right + refresh_bytes<Space>(sides, rule.refresh, rows, cols);
  const std::size_t moments = W::template bytes<float>(rows * cols);
  std::size_t held = 0, most = moments;  // products and orders; the largest of what comes on top
  const auto add = [&](std::size_t d, std::size_t e) {
    held += moments + W::template bytes<std::int32_t>(e);
    most = std::max({most, W::template bytes<double>(e),
                     2 * W::template bytes<float>(d * d) + refresh_workspace_bytes<Space>(rule.refresh.method, d)});
  };
  if (sides.left) add(rows, cols);
  if (sides.right) add(cols, rows);
  return held + most;
}

#define SESTINA_MOMENTUM_BASES(Space)                                                                            \
  template bool refresh_from_momentum<Space>(Stream<Space>&, TwoSided<Space>&, const RotatedAdamRule&,           \
                                             const typename TwoSided<Space>::Point&, Matrix<const float, Space>, \
                                             Matrix<float, Space>);                                              \
  template std::size_t refresh_from_momentum_bytes<Space>(Sides, const RotatedAdamRule&, std::size_t, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_MOMENTUM_BASES)

}  // namespace sestina

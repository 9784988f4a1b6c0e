// Bases of basis rotation that follow the first moment (rotated_adam.hpp).
#include <algorithm>

#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {
namespace {

// The factors K = M M^T and M^T M of the sides that need them.
template <class Space>
struct MomentumFactors {
  MomentumFactors(Workspace<Space>& workspace, Sides sides, std::size_t m, std::size_t n) {
    if (sides.left) left = workspace.template take<float>(m, m);
    if (sides.right) right = workspace.template take<float>(n, n);
  }
  Matrix<float, Space> left, right;
};

// The memory of a side as published: P and the order of its columns,
template <class Space>
struct PublishedPieces {
  PublishedPieces(Workspace<Space>& workspace, std::size_t d, std::size_t e)
      : product(workspace.template take<float>(d, e)), order(workspace.template take<std::int32_t>(e)) {}
  Matrix<float, Space> product;
  Vector<std::int32_t, Space> order;
};
// the squares of these columns,
template <class Space>
struct ColumnSquares {
  ColumnSquares(Workspace<Space>& workspace, std::size_t e) : squares(workspace.template take<double>(e)) {}
  Vector<double, Space> squares;
};
// and the matrices of its job.
template <class Space>
struct PublishedJob {
  PublishedJob(Workspace<Space>& workspace, std::size_t d)
      : factor(workspace.template take<float>(d, d)), basis(workspace.template take<float>(d, d)) {}
  Matrix<float, Space> factor, basis;
};

// Makes one power step from the published basis with K = M M^T or M^T M, as from factors.
template <class Space>
bool power_step(Stream<Space>& stream, TwoSided<Space>& sides, const RotatedAdamRule& rule,
                const typename TwoSided<Space>::Point& point, Matrix<const float, Space> momentum,
                Matrix<float, Space> second_moment) {
  const auto frame = stream.workspace.frame();
  const Sides read{sides.reads_factor(sides.left, point), sides.reads_factor(sides.right, point)};
  const MomentumFactors<Space> factors(stream.workspace, read, momentum.extent(0), momentum.extent(1));
  const Products<Space> products = sides.products(stream);
  if (read.left) products.symmetric(Op::none, 1, momentum, 0, factors.left);
  if (read.right) products.symmetric(Op::transpose, 1, momentum, 0, factors.right);
  return sides.refresh(stream, rule.refresh, point, {second_moment, {}, {}}, factors.left, factors.right);
}

// One side as published: Q = qr(P) with P = op(M) times the other side's old basis, or P = op(M) where that side is not
// rotated, the columns of P by falling norm. P has as many rows as Q; a P with fewer columns is filled up with zeros,
// whose columns of Q complete the basis.
template <class Space>
struct PublishedSide {
  const Side<Space>& side;
  const Side<Space>& other;
  Op op;                                   // operation on M
  Matrix<float, Space> product = {};       // (d, e)
  Vector<std::int32_t, Space> order = {};  // (e)

  void prepare(Stream<Space>& stream, Matrix<const float, Space> momentum) {
    const bool plain = op == Op::none;
    const std::size_t d = momentum.extent(plain ? 0 : 1), e = momentum.extent(plain ? 1 : 0);
    const PublishedPieces<Space> pieces(stream.workspace, d, e);
    product = pieces.product;
    order = pieces.order;
    const auto frame = stream.workspace.frame();
    const Vector<double, Space> squares = ColumnSquares<Space>(stream.workspace, e).squares;
    if (other.on())
      multiply<Space>(stream, op, Op::none, 1, momentum, other.basis.read(), 0, product);
    else
      copy_matrix<Space>(stream.exec, !plain, momentum, product);
    column_dots<Space, float>(stream.exec, product, product, squares);
    order_falling<Space>(stream.exec, squares, order);
  }

  // Finishes the side. A failure leaves the basis, and nothing is to be permuted.
  bool finish(Stream<Space>& stream) {
    const std::size_t d = product.extent(0);
    const auto frame = stream.workspace.frame();
    const PublishedJob<Space> pieces(stream.workspace, d);
    const Matrix<float, Space> factor = pieces.factor, basis = pieces.basis;
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

// Refreshes both sides, each from the other's old basis. The second moment is permuted along the axis whose basis was
// sorted, whether that axis is rotated or not. False: a side keeps its old basis.
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
  const Matrix<float, Space> scratch =
      MatrixScratch<Space>(stream.workspace, momentum.extent(0), momentum.extent(1)).values;
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

namespace {

template <class Space>
void declare_published_step(Workspace<Space>& workspace, Sides sides, std::size_t rows, std::size_t cols) {
  const auto frame = workspace.frame();
  const auto prepare = [&](std::size_t d, std::size_t e) {
    PublishedPieces<Space>(workspace, d, e);  // held until the frame ends
    declare<ColumnSquares<Space>>(workspace, e);
  };
  const auto finish = [&](std::size_t d) {
    const auto inner = workspace.frame();
    const PublishedJob<Space> pieces(workspace, d);
    declare_refresh<Space>(workspace, RefreshJob<Space>().method, d, false);
  };
  if (sides.left) prepare(rows, cols);
  if (sides.right) prepare(cols, rows);
  if (sides.left) finish(rows);
  if (sides.right) finish(cols);
  declare<MatrixScratch<Space>>(workspace, rows, cols);
}

}  // namespace

template <class Space>
void declare_refresh_from_momentum(Workspace<Space>& workspace, Sides sides, const RotatedAdamRule& rule,
                                   std::size_t rows, std::size_t cols) {
  if (rule.release) return declare_published_step(workspace, sides, rows, cols);
  const auto frame = workspace.frame();
  const MomentumFactors<Space> factors(workspace, sides, rows, cols);
  declare_products<Space>(workspace, rule.precision, rows, cols);
  declare_side_refreshes<Space>(workspace, sides, rule.refresh, rows, cols);
}

#define SESTINA_MOMENTUM_BASES(Space)                                                                               \
  template bool refresh_from_momentum<Space>(Stream<Space>&, TwoSided<Space>&, const RotatedAdamRule&,              \
                                             const typename TwoSided<Space>::Point&, Matrix<const float, Space>,    \
                                             Matrix<float, Space>);                                                 \
  template void declare_refresh_from_momentum<Space>(Workspace<Space>&, Sides, const RotatedAdamRule&, std::size_t, \
                                                     std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_MOMENTUM_BASES)

}  // namespace sestina

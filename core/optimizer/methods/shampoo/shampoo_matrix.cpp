#include "core/optimizer/methods/shampoo/shampoo_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/optimizer/methods/two_sided.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/inverse_root.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// Sets y = factor(0) x, or x where factor is (0).
template <class Space>
void scale_block(const Space& exec, Vector<const double, Space> factor, Matrix<const float, Space> x,
                 Matrix<float, Space> y) {
  const bool scaled = factor.extent(0) != 0;
  for_elements(
      "scale_block", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const float by = scaled ? static_cast<float>(factor(0)) : 1.0f;
        for (std::size_t j = begin; j < end; ++j) y(i, j) = by * x(i, j);
      });
}

RefreshMethod root_method(ShampooOptions::Root root) {
  if (root == ShampooOptions::Root::eigh) return RefreshMethod::inverse_root_eigh;
  return root == ShampooOptions::Root::qr ? RefreshMethod::inverse_root_qr : RefreshMethod::inverse_root_newton;
}

// The memory of an update: where there are several blocks, the direction of all,
template <class Space>
struct WholeDirection {
  WholeDirection(Workspace<Space>& workspace, const ShampooLayout& layout)
      : values(workspace.template take<float>(layout.rows, layout.cols)) {}
  Matrix<float, Space> values;
};
// for a block first, for each side, a packed factor, and its refresh,
template <class Space>
struct UnpackedFactor {
  UnpackedFactor(Workspace<Space>& workspace, std::size_t d) : values(workspace.template take<float>(d, d)) {}
  Matrix<float, Space> values;
};
// then the averaged gradient, and the memory in which its graft and direction are made,
template <class Space>
struct BlockPieces {
  BlockPieces(Workspace<Space>& workspace, const ShampooBlock& b)
      : filtered(workspace.template take<float>(b.rows, b.cols)),
        other(workspace.template take<float>(b.rows, b.cols)) {}
  Matrix<float, Space> filtered, other;
};
// and the squares of both.
template <class Space>
struct GraftPieces {
  explicit GraftPieces(Workspace<Space>& workspace) : squares(workspace.template take<double>(2)) {}
  Vector<double, Space> squares;
};

}  // namespace

ShampooRule::ShampooRule(const MatrixOptions& options)
    : ShampooOptions(options.as<ShampooOptions>()),
      method(root_method(root)),
      every(options.refresh_every),
      start(start_step > 0 ? start_step : every) {
  if (beta3 < 0) beta3 = beta1;
}

FilterRule ShampooRule::filter(std::int64_t t, double gradient_scale) const {
  const double steps = static_cast<double>(t);
  const double bias1 = bias_correction ? 1 - beta3 * std::pow(beta1, steps - 1) : 1;
  FilterRule r{.gradient = static_cast<float>(gradient_scale),
               .learn1 = static_cast<float>(1 - beta1),
               .learn3 = static_cast<float>(1 - beta3),
               .inv_bias1 = static_cast<float>(1 / bias1)};
  r.second_moment = grafts_by_moment();
  r.forget = graft == Graft::adagrad ? 0 : static_cast<float>(1 - graft_beta2);
  r.gain = graft == Graft::adagrad ? 1 : r.forget;
  if (graft == Graft::adam) r.inv_bias2 = static_cast<float>(1 / (1 - std::pow(graft_beta2, steps)));
  r.eps = static_cast<float>(graft_eps);
  return r;
}

template <class Space>
Shampoo<Space>::Shampoo(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
    : rule_(options),
      layout_(shampoo_layout(rule_, shape.rows, shape.cols)),
      index_(shape.index),
      state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
      sides_(make_sides()),
      port_(state_, options, port_sides()) {
  if (rule_.method == RefreshMethod::inverse_root_newton &&
      newton_order(layout_.is_vector ? 2 * rule_.exponent : rule_.exponent) == 0)
    fail(ExitCode::bad_deck, "optimizer.exponent {}: root = \"newton\" needs 1, 1/2, 1/3, ...", rule_.exponent);
}

template <class Space>
void Shampoo<Space>::declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                                     std::size_t cols) {
  const ShampooRule rule(options);
  const ShampooLayout layout = shampoo_layout(rule, rows, cols);
  if (layout.blocks.size() > 1) WholeDirection<Space>(workspace, layout);
  const auto side = [&](const ShampooBlock& b, std::size_t d) {
    const auto frame = workspace.frame();
    if (rule.packed) UnpackedFactor<Space>(workspace, d);
    declare_products<Space>(workspace, rule.matmul_precision, b.rows, b.cols);
    declare_refresh<Space>(workspace, rule.method, d);
  };
  for (const ShampooBlock& b : layout.blocks) {
    side(b, b.rows);
    if (!layout.is_vector) side(b, b.cols);
    const auto frame = workspace.frame();
    const BlockPieces<Space> pieces(workspace, b);
    const GraftPieces<Space> squares(workspace);
    declare_products<Space>(workspace, rule.matmul_precision, b.rows, b.cols);
    declare<SumScratch<Space>>(workspace, b.rows * b.cols);
  }
}

template <class Space>
void Shampoo<Space>::step(Stream<Space>& stream, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) {
  const std::int64_t t = ++state_.counter("updates");
  if (t == 1)
    for (const ShampooSide<Space>& s : sides_) {
      const auto root = s.root.write(Pager::Need::room);
      set_identity(stream.exec, root.view());  // until the first refresh
    }
  const auto frame = stream.workspace.frame();
  const bool single = layout_.blocks.size() == 1;
  Matrix<float, Space> direction;  // (m, n) of all blocks
  if (!single) direction = WholeDirection<Space>(stream.workspace, layout_).values;
  const WeightMove move{numbers.lr, 1, numbers.weight_decay, rule_.decay_order == Order::before, stream.nonfinite};
  const Vector<float, Space> master(matrix.master.data(), matrix.master.size());
  const Vector<bf16, Space> weight(matrix.weight.data(), matrix.weight.size());
  for (std::size_t i = 0; i < layout_.blocks.size(); ++i) {
    const auto block_frame = stream.workspace.frame();
    const Direction part = block_direction(stream, i, t, numbers.gradient_scale, matrix.gradient);
    if (single) {
      const Vector<const float, Space> flat(part.values.data(), part.values.size());
      move_weight<Space, float>(stream.exec, move, flat, master, weight, part.factor);
    } else {
      scale_block<Space>(stream.exec, part.factor, part.values, cut(direction, layout_.blocks[i]));
    }
  }
  if (single) return;
  const Vector<const float, Space> flat(direction.data(), direction.size());
  move_weight<Space, float>(stream.exec, move, flat, master, weight);
}

template <class Space>
std::vector<ShampooSide<Space>> Shampoo<Space>::make_sides() {
  std::vector<ShampooSide<Space>> sides;
  for (std::size_t i = 0; i < layout_.blocks.size(); ++i) {
    sides.push_back(side(layout_.blocks[i].prefix, "left", 2 * i));
    if (!layout_.is_vector) sides.push_back(side(layout_.blocks[i].prefix, "right", 2 * i + 1));
  }
  return sides;
}

template <class Space>
std::vector<RefreshSide> Shampoo<Space>::port_sides() const {
  std::vector<RefreshSide> sides;
  for (const ShampooSide<Space>& s : sides_)
    sides.push_back({.name = s.name,
                     .snapshot = s.snapshot,
                     .failures = s.failures,
                     .results = s.refreshes,
                     .room = {.basis = s.basis.size(), .root = s.root.size()},
                     .d = s.size()});
  return sides;
}

template <class Space>
ShampooSide<Space> Shampoo<Space>::side(const std::string& prefix, const std::string& which, std::size_t counter) {
  const std::string factor = prefix + "factor_" + which;
  ShampooSide<Space> s{.name = state_.path() + "/" + factor,
                       .snapshot = prefix + "snapshot_" + which,
                       .is_packed = !state_.has(factor),
                       .root = state_.array(prefix + "inverse_root_" + which)};
  s.factor = state_.array(s.is_packed ? factor + "_packed" : factor);
  if (state_.has(prefix + "basis_" + which)) s.basis = state_.array(prefix + "basis_" + which);
  s.failures = &state_.counter("failures") + counter;
  s.refreshes = &state_.counter("refreshes") + counter;
  return s;
}

template <class Space>
void Shampoo<Space>::advance_side(Stream<Space>& stream, std::size_t number, Op op, std::int64_t t,
                                  double gradient_scale, Matrix<const float, Space> gradient) {
  const auto frame = stream.workspace.frame();
  const ShampooSide<Space>& s = sides_[number];
  const auto kept = s.factor.write();
  Matrix<float, Space> factor = kept.view();
  if (s.is_packed) {
    factor = UnpackedFactor<Space>(stream.workspace, s.size()).values;
    unpack_symmetric<Space>(stream.exec, flat<float, Space>(kept.view()), factor);
  }
  const Products<Space> products{stream, rule_.matmul_precision};
  products.symmetric(op, static_cast<float>(rule_.gain(gradient_scale)), gradient, static_cast<float>(rule_.beta2),
                     factor);
  if (s.is_packed) pack_symmetric<Space>(stream.exec, factor, flat<float, Space>(kept.view()));
  refresh_side(stream, number, t, factor);
}

template <class Space>
bool Shampoo<Space>::is_due(std::int64_t t, const RefreshPolicy& policy) const {
  return t == rule_.start || (t > rule_.start && refresh_due(t, rule_.every, index_, policy));
}

template <class Space>
bool Shampoo<Space>::repeats(const RefreshPolicy& policy) {
  const std::int64_t next = state_.counter("updates") + 1;
  return next > rule_.start && !is_due(next, policy);
}

template <class Space>
void Shampoo<Space>::refresh_side(Stream<Space>& stream, std::size_t number, std::int64_t t,
                                  Matrix<const float, Space> factor) {
  const ShampooSide<Space>& s = sides_[number];
  const bool due = is_due(t, stream.refresh.policy);
  const bool here = *s.refreshes == 0 || stream.refresh.policy.is_in_update(index_);
  const Due when = !due ? Due::no : here ? Due::here : Due::now;
  port_.at(stream, number, t, when, [&](std::int64_t from) {
    return RefreshRequest<Space>{root_job(s, factor, from), s.basis, s.root};
  });
}

template <class Space>
RefreshJob<Space> Shampoo<Space>::root_job(const ShampooSide<Space>& s, Matrix<const float, Space> factor,
                                           std::int64_t t) const {
  const bool corrected = rule_.bias_correction && rule_.beta2 < 1;
  RefreshJob<Space> job{.method = rule_.method, .name = s.name, .factor = factor};
  // Iterations by QR start from a basis: the first one comes from eigenvectors.
  if (job.method == RefreshMethod::inverse_root_qr && *s.refreshes == 0) job.method = RefreshMethod::inverse_root_eigh;
  job.exponent = layout_.is_vector ? 2 * rule_.exponent : rule_.exponent;
  job.scale = corrected ? 1 / (1 - std::pow(rule_.beta2, static_cast<double>(t))) : 1;
  job.eps = rule_.eps;
  job.perturb_before = rule_.perturb == Order::before;
  job.tolerance = rule_.qr_tolerance;
  job.max_iterations = job.method == RefreshMethod::inverse_root_qr ? static_cast<int>(rule_.qr_iterations) : 0;
  return job;
}

template <class Space>
typename Shampoo<Space>::Direction Shampoo<Space>::block_direction(Stream<Space>& stream, std::size_t i, std::int64_t t,
                                                                   double gradient_scale,
                                                                   Matrix<const float, Space> whole_gradient) {
  const ShampooBlock& b = layout_.blocks[i];
  const Matrix<const float, Space> gradient = cut(whole_gradient, b);
  const std::size_t first = layout_.is_vector ? i : 2 * i;
  advance_side(stream, first, Op::none, t, gradient_scale, gradient);
  if (!layout_.is_vector) advance_side(stream, first + 1, Op::transpose, t, gradient_scale, gradient);

  const FilterRule f = rule_.filter(t, gradient_scale);
  const BlockPieces<Space> pieces(stream.workspace, b);
  const Matrix<float, Space> filtered = pieces.filtered, other = pieces.other;
  FilterData<Space> data{gradient, cut(state_.matrix("momentum"), b), {}, filtered, other};
  if (f.second_moment) data.second_moment = cut(state_.matrix("second_moment"), b);
  filter<Space>(stream.exec, f, data);

  const Matrix<float, Space> graft = f.second_moment ? other : filtered;
  if (t < rule_.start) return {graft};  // without a graft the roots are still the identity
  const bool grafts = rule_.grafts();
  const Vector<double, Space> squares = GraftPieces<Space>(stream.workspace).squares;
  const auto squares_of = [&](Matrix<const float, Space> x, std::size_t place) {
    sum_of_squares_to<Space, float>(stream.exec, Vector<const float, Space>(x.data(), x.size()), stream.workspace,
                                    Vector<double, Space>(squares.data() + place, 1));
  };
  if (grafts) squares_of(graft, 0);
  const Products<Space> products{stream, rule_.matmul_precision};
  products.multiply(Op::none, Op::none, 1, sides_[first].root.read(), filtered, 0, other);
  Matrix<float, Space> direction = other;
  if (!layout_.is_vector) {
    products.multiply(Op::none, Op::none, 1, other, sides_[first + 1].root.read(), 0, filtered);
    direction = filtered;
  }
  if (!grafts) return {direction};
  squares_of(direction, 1);
  make_graft_factor<Space>(stream.exec, squares);
  return {direction, Vector<const double, Space>(squares.data(), 1)};
}

#define SESTINA_SHAMPOO(Space) template class Shampoo<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_SHAMPOO)

}  // namespace sestina

// Shampoo (Gupta, Koren, Singer 2018) with blocks and grafting as in Shi et al. 2023. For each block with gradient G:
// L = beta2 L + (1 - beta2) G G^T, R = beta2 R + (1 - beta2) G^T G, and at a refresh their inverse roots, before use;
// P = L^-p F R^-p with the averaged gradient F, with the size of the graft's direction.
#include "core/optimizer/methods/shampoo.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/two_sided.hpp"
#include "core/optimizer/refresh/port.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/inverse_root.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// One pass over a block's gradient: both averages, the filtered gradient and the graft's direction.
//   filtered = lerp(F, G, 1 - beta3) / bias, then F = lerp(F, G, 1 - beta1)
//   V = V - forget V + gain G^2, graft = filtered / (sqrt(V inv_bias2) + eps)
struct FilterRule {
  float gradient = 1, learn1 = 0, learn3 = 0, inv_bias1 = 1;
  bool second_moment = false;
  float forget = 0, gain = 0, inv_bias2 = 1, eps = 0;
};

// The arrays all have one shape (bm, bn); without a second moment, that and graft may be (0, 0).
template <class Space>
struct FilterData {
  Matrix<const float, Space> gradient;
  Matrix<float, Space> momentum, second_moment, filtered, graft;
};

KOKKOS_INLINE_FUNCTION void filter_moment(const FilterRule& r, std::size_t n, const float* __restrict gradient,
                                          float* __restrict momentum, float* __restrict filtered) {
  for (std::size_t j = 0; j < n; ++j) {
    const float g = r.gradient * gradient[j], f = momentum[j];
    filtered[j] = (f + r.learn3 * (g - f)) * r.inv_bias1;
    momentum[j] = f + r.learn1 * (g - f);
  }
}

KOKKOS_INLINE_FUNCTION void filter_graft(const FilterRule& r, std::size_t n, const float* __restrict gradient,
                                         const float* __restrict filtered, float* __restrict second_moment,
                                         float* __restrict graft) {
  for (std::size_t j = 0; j < n; ++j) {
    const float g = r.gradient * gradient[j];
    const float v = second_moment[j] + (r.gain * g * g - r.forget * second_moment[j]);
    second_moment[j] = v;
    graft[j] = filtered[j] / (Kokkos::sqrt(v * r.inv_bias2) + r.eps);
  }
}

template <class Space>
void filter(const Space& exec, const FilterRule& r, const FilterData<Space>& x) {
  for_elements(
      "filter", exec, x.gradient.extent(0), x.gradient.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        filter_moment(r, end - begin, &x.gradient(i, begin), &x.momentum(i, begin), &x.filtered(i, begin));
        if (r.second_moment)
          filter_graft(r, end - begin, &x.gradient(i, begin), &x.filtered(i, begin), &x.second_moment(i, begin),
                       &x.graft(i, begin));
      });
}

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

// Takes squares (2), the sums of squares of the graft and of the direction; the first becomes the factor that gives the
// direction the size of the graft.
template <class Space>
void graft_factor(const Space& exec, Vector<double, Space> squares) {
  constexpr double tiny = 1e-16;  // as in the published rule
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "graft_factor", one,
      KOKKOS_LAMBDA(std::size_t) { squares(0) = Kokkos::sqrt(squares(0)) / (Kokkos::sqrt(squares(1)) + tiny); });
}

using Graft = ShampooOptions::Graft;

RefreshMethod root_method(ShampooOptions::Root root) {
  if (root == ShampooOptions::Root::eigh) return RefreshMethod::inverse_root_eigh;
  return root == ShampooOptions::Root::qr ? RefreshMethod::inverse_root_qr : RefreshMethod::inverse_root_newton;
}

// The keys, and the numbers that follow from them.
struct ShampooRule : ShampooOptions {
  explicit ShampooRule(const MatrixOptions& options)
      : ShampooOptions(options.as<ShampooOptions>()),
        method(root_method(root)),
        every(options.refresh_every),
        start(start_step > 0 ? start_step : every) {
    if (beta3 < 0) beta3 = beta1;
  }

  FilterRule filter(std::int64_t t, double gradient_scale) const {
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

  RefreshMethod method;
  std::int64_t every, start;
};

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

// One side of a block: its factor, whole or packed, and what is computed from it.
template <class Space>
struct ShampooSide {
  std::string name;               // name of the factor, for messages
  std::string snapshot;           // the field of its snapshot
  StateArray<Space> factor = {};  // (d, d), or packed
  bool is_packed = false;
  StateArray<Space> root = {}, basis = {};
  std::int64_t* failures = nullptr;
  std::int64_t* refreshes = nullptr;
  std::size_t size() const { return root.extent(0); }
};

template <class Space>
class Shampoo final : public MatrixOptimizer<Space> {
 public:
  Shampoo(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
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

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
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

  void step(Stream<Space>& stream, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) override {
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

  MatrixState<Space>& state() override { return state_; }
  RefreshAges ages() const override { return port_.ages(); }
  RefreshPort<Space>* port() override { return &port_; }

 private:
  struct Direction {
    Matrix<float, Space> values;              // (bm, bn) without padding
    Vector<const double, Space> factor = {};  // (1) in the space: a factor still to be applied
  };

  std::vector<ShampooSide<Space>> make_sides() {
    std::vector<ShampooSide<Space>> sides;
    for (std::size_t i = 0; i < layout_.blocks.size(); ++i) {
      sides.push_back(side(layout_.blocks[i].prefix, "left", 2 * i));
      if (!layout_.is_vector) sides.push_back(side(layout_.blocks[i].prefix, "right", 2 * i + 1));
    }
    return sides;
  }

  std::vector<RefreshSide> port_sides() const {
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

  ShampooSide<Space> side(const std::string& prefix, const std::string& which, std::size_t counter) {
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

  // Returns the block's part of x (m, n), whose rows are contiguous.
  template <class T>
  Matrix<T, Space> cut(Matrix<T, Space> x, const ShampooBlock& b) const {
    const Matrix<T, Space> seen(x.data(), layout_.rows, layout_.cols);
    return Kokkos::subview(seen, std::make_pair(b.row, b.row + b.rows), std::make_pair(b.col, b.col + b.cols));
  }

  // Updates A = beta2 A + (1 - beta2) op(G) op(G)^T, and its inverse root when that falls due.
  void advance_side(Stream<Space>& stream, std::size_t number, Op op, std::int64_t t, double gradient_scale,
                    Matrix<const float, Space> gradient) {
    const auto frame = stream.workspace.frame();
    const ShampooSide<Space>& s = sides_[number];
    const auto kept = s.factor.write();
    Matrix<float, Space> factor = kept.view();
    if (s.is_packed) {
      factor = UnpackedFactor<Space>(stream.workspace, s.size()).values;
      unpack_symmetric<Space>(stream.exec, flat<float, Space>(kept.view()), factor);
    }
    const double gain = rule_.beta2 < 1 ? 1 - rule_.beta2 : 1;
    const Products<Space> products{stream, rule_.matmul_precision};
    products.symmetric(op, static_cast<float>(gain * gradient_scale * gradient_scale), gradient,
                       static_cast<float>(rule_.beta2), factor);
    if (s.is_packed) pack_symmetric<Space>(stream.exec, factor, flat<float, Space>(kept.view()));
    const bool due =
        t == rule_.start || (t > rule_.start && refresh_due(t, rule_.every, index_, stream.refresh.policy));
    const bool here = *s.refreshes == 0 || stream.refresh.policy.is_in_update(index_);
    const Due when = !due ? Due::no : here ? Due::here : Due::now;
    port_.at(stream, number, t, when, [&](std::int64_t from) {
      return RefreshRequest<Space>{root_job(s, factor, from), s.basis, s.root};
    });
  }

  // Returns the job of update t.
  RefreshJob<Space> root_job(const ShampooSide<Space>& s, Matrix<const float, Space> factor, std::int64_t t) const {
    const bool corrected = rule_.bias_correction && rule_.beta2 < 1;
    RefreshJob<Space> job{.method = rule_.method, .name = s.name, .factor = factor};
    // Iterations by QR start from a basis: the first one comes from eigenvectors.
    if (job.method == RefreshMethod::inverse_root_qr && *s.refreshes == 0)
      job.method = RefreshMethod::inverse_root_eigh;
    job.exponent = layout_.is_vector ? 2 * rule_.exponent : rule_.exponent;
    job.scale = corrected ? 1 / (1 - std::pow(rule_.beta2, static_cast<double>(t))) : 1;
    job.eps = rule_.eps;
    job.perturb_before = rule_.perturb == Order::before;
    job.tolerance = rule_.qr_tolerance;
    job.max_iterations = job.method == RefreshMethod::inverse_root_qr ? static_cast<int>(rule_.qr_iterations) : 0;
    return job;
  }

  // Updates factors, roots and averages of block i, and returns the direction in which its part of the weight moves.
  Direction block_direction(Stream<Space>& stream, std::size_t i, std::int64_t t, double gradient_scale,
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
    const bool grafts = rule_.graft != Graft::none;
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
    graft_factor<Space>(stream.exec, squares);
    return {direction, Vector<const double, Space>(squares.data(), 1)};
  }

  ShampooRule rule_;
  ShampooLayout layout_;
  std::int64_t index_;
  MatrixState<Space> state_;
  std::vector<ShampooSide<Space>> sides_;  // by block: left, right
  RefreshPort<Space> port_;
};

RefreshNeeds shampoo_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const ShampooLayout layout =
      shampoo_layout(options.as<ShampooOptions>(), static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  const RefreshMethod root = ShampooRule(options).method;
  const std::size_t results = root == RefreshMethod::inverse_root_qr ? 2 : 1;  // a root, and the basis that it is in
  RefreshNeeds needs;
  auto counter = Workspace<Serial>::counter();
  const auto add = [&](std::size_t d) {
    ++needs.jobs;
    declare_packed_job(counter, root, d);
    needs.results += results * d * d * sizeof(float);
    needs.copies += bytes_of(packed_snapshot(options, "snapshot", static_cast<std::int64_t>(d)));
  };
  for (const ShampooBlock& block : layout.blocks) {
    add(block.rows);
    if (!layout.is_vector) add(block.cols);
  }
  needs.scratch = counter.peak();
  return needs;
}

MatrixKind shampoo_kind() {
  MatrixKind kind = matrix_kind<ShampooOptions>("shampoo");
  kind.refresh_every = 10;
  kind.state = shampoo_state;
  kind.stated_flops = stated_roots;
  kind.work = shampoo_work;
  kind.width_power = [](const MatrixOptions& options) {  // other sizes depend on those of gradients
    return options.as<ShampooOptions>().grafts_by_moment() ? std::optional(0.5) : std::nullopt;
  };
  kind.refresh_needs = shampoo_needs;
  kind.refresh_always = [](MatrixOptions& options) {
    auto keys = options.as<ShampooOptions>();
    keys.start_step = 0;
    keys.qr_tolerance = 0;
    options.keys = keys;
  };
  kind.keeps_skew = [](const MatrixOptions&) { return true; };
  kind.checks = {[](Deck& deck, Options& options) {
    const ShampooRule rule(*options.optimizer.matrix);
    if (rule.method == RefreshMethod::inverse_root_newton && newton_order(rule.exponent) == 0)
      deck.error("optimizer.exponent", "root = \"newton\" takes whole roots", "1, 1/2, 1/3, ...");
  }};
  return kind;
}

}  // namespace

void register_shampoo() { register_matrix_kind<Shampoo>(shampoo_kind()); }

}  // namespace sestina

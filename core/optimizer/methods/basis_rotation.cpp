#include "core/optimizer/methods/basis_rotation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "core/optimizer/methods/rotated/rotated_updates.hpp"

namespace sestina {

void BasisRotationOptions::fields(OptionFields& f) {
  f.number("beta1", beta1, below_one);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.number("factor_beta", factor_beta, below_one);
  f.integer("max_dim", max_dim, {.min = 1});
  f.choice("source", source, {"2nd", "1st"});
  f.choice("geometry", geometry, {"bilateral", "unilateral"});
  f.choice("basis_first", basis_first, {"eigh", "svd"});
  f.choice("momentum_basis", momentum_basis, {"original", "rotated"});
  f.choice("dialect", dialect, {"corrected", "release"});
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

namespace {

using Keys = BasisRotationOptions;

bool has_factors(const Keys& o) { return o.source == Keys::Source::second; }
bool is_bilateral(const Keys& o) { return o.geometry == Keys::Geometry::bilateral; }
bool keeps_rotated(const Keys& o) { return o.momentum_basis == MomentumBasis::rotated; }

Sides rotated_sides(const Keys& o, std::int64_t rows, std::int64_t cols) {
  return is_bilateral(o) ? Sides{} : shorter_side(rows, cols);
}

RotatedAdamRule rotation_rule(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const auto& o = options.as<Keys>();
  RotatedAdamRule rule;
  rule.adam = {o.beta1, o.beta2, o.eps};
  rule.factor_beta = o.factor_beta;
  rule.refresh_every = options.refresh_every;
  rule.refresh.first = o.basis_first;
  rule.skip_first = false;
  rule.factors_first = true;
  rule.decay_first = true;
  rule.keep_rotated = keeps_rotated(o);
  rule.from_momentum = !has_factors(o);
  rule.precision = o.matmul_precision;
  rule.release = o.dialect == Keys::Dialect::release;
  // The published code looks for a left basis to know whether there is any.
  if (rule.release && !is_bilateral(o) && rows >= cols) rule.refresh_every = 1;
  return rule;
}

// The published code rotates whole sides, and its dialect does not cut them.
void require_whole_sides(Deck& deck, Options& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  const auto& keys = optimizer.matrix->as<Keys>();
  if (keys.dialect != Keys::Dialect::release) return;
  std::int64_t longest = 0;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    if (!is_matrix_optimized(spec, optimizer) || spec.is_packed()) continue;
    longest = std::max({longest, spec.rows / (is_by_head(spec, optimizer) ? spec.heads : 1), spec.cols});
  }
  if (longest > keys.max_dim)
    deck.error("optimizer.max_dim",
               fmt::format("optimizer.dialect = \"release\" rotates whole sides, and the longest is {}", longest),
               fmt::format(">= {}, or dialect = \"corrected\"", longest));
}

MatrixKind basis_rotation_kind() {
  MatrixKind kind = matrix_kind<Keys>("basis-rotation");
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const auto& o = options.as<Keys>();
    return rotated_fields(options, rotated_sides(o, rows, cols), has_factors(o), keeps_rotated(o), rows, cols);
  };
  kind.max_dim = [](const MatrixOptions& options) { return options.as<Keys>().max_dim; };
  kind.checks = {require_whole_sides};
  kind.stated_flops = stated_rotation;
  kind.width_power = [](const MatrixOptions&) { return std::optional(0.5); };
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {  // rotations, and a factor
    const auto& o = options.as<Keys>();
    const double products = (has_factors(o) ? 1 : 0) + rotation_products(keeps_rotated(o));
    const Sides sides = rotated_sides(o, rows, cols);
    UpdateWork work = side_work(sides, rows, cols, products, qr_step);
    work.first_bases = first_bases_work(o.basis_first, sides, rows, cols);
    return work;
  };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const RotatedAdamRule rule = rotation_rule(options, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
    return RotatedAdam<Serial>::refresh_needs(options, rule, rows, cols);
  };
  kind.inline_reason = [](const MatrixOptions& options) -> std::string {
    if (options.as<Keys>().dialect != Keys::Dialect::release) return "";
    return "optimizer.dialect = \"release\", which refreshes as was published";
  };
  kind.keeps_skew = [](const MatrixOptions& options) { return is_bilateral(options.as<Keys>()); };
  return kind;
}

template <class Space>
class BasisRotationUpdates final : public RotatedUpdates<Space> {
 public:
  BasisRotationUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
      : RotatedUpdates<Space>(rotation_rule(options, items.front().matrix.rows(), items.front().matrix.cols()), items) {
  }
  static bool declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, bool /*computes_bf16*/,
                              std::size_t rows, std::size_t cols) {
    return RotatedUpdates<Space>::declare_in_batch(workspace, options, rotation_rule(options, rows, cols), rows, cols);
  }
};

template <class Space>
class BasisRotation final : public RotatedAdam<Space> {
 public:
  using Batch = BasisRotationUpdates<Space>;

  BasisRotation(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : RotatedAdam<Space>(exec, options, rotation_rule(options, shape.rows, shape.cols), shape) {}
  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    RotatedAdam<Space>::declare_update(workspace, options, rotation_rule(options, rows, cols), rows, cols);
  }
};

}  // namespace

void register_basis_rotation() { register_matrix_kind<BasisRotation>(basis_rotation_kind()); }

}  // namespace sestina

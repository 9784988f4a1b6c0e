#include "core/optimizer/methods/soap.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "core/optimizer/methods/rotated/rotated_updates.hpp"

namespace sestina {

void SoapOptions::fields(OptionFields& f) {
  f.number("beta1", beta1, below_one);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.number("factor_beta", factor_beta, below_one);
  f.integer("max_dim", max_dim, {.min = 1});
  f.choice("sides", sides, {"both", "smaller"});
  f.choice("first_step", first_step, {"skip", "use"});
  f.choice("factor_update", factor_update, {"after", "before"});
  f.choice("decay_order", decay_order, {"after", "before"});
  f.flag("bias_correction", bias_correction);
  f.flag("factor_bias_correction", factor_bias_correction);
  f.flag("permute_second_moment", permute_second_moment);
  f.choice("basis_first", basis_first, {"eigh", "svd"});
  f.choice("basis_refresh", basis_refresh, {"qr", "eigh"});
  f.choice("momentum_basis", momentum_basis, {"original", "rotated"});
  f.flag("normalize", normalize);
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

namespace {

bool keeps_rotated(const SoapOptions& o) { return o.momentum_basis == MomentumBasis::rotated; }

Sides soap_sides(const SoapOptions& o, std::int64_t rows, std::int64_t cols) {
  return o.sides == SoapOptions::Sides::both ? Sides{} : shorter_side(rows, cols);
}

RotatedAdamRule soap_rule(const MatrixOptions& options) {
  const auto& o = options.as<SoapOptions>();
  RotatedAdamRule rule;
  rule.adam = {o.beta1, o.beta2, o.eps};
  rule.factor_beta = o.factor_beta;
  rule.refresh_every = options.refresh_every;
  if (o.basis_refresh == SoapOptions::Refresh::eigh) rule.refresh.method = RefreshMethod::eigen_basis;
  rule.refresh.first = o.basis_first;
  rule.refresh.permute = o.permute_second_moment;
  rule.skip_first = o.first_step == FirstStep::skip;
  rule.factors_first = o.factor_update == Order::before;
  rule.decay_first = o.decay_order == Order::before;
  rule.bias_correction = o.bias_correction;
  rule.factor_bias_correction = o.factor_bias_correction;
  rule.keep_rotated = keeps_rotated(o);
  rule.normalize = o.normalize;
  rule.precision = o.matmul_precision;
  return rule;
}

// Returns the work: a factor in a^2 b, and rotations.
UpdateWork soap_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<SoapOptions>();
  const double refresh = o.basis_refresh == SoapOptions::Refresh::eigh ? all_eigenvectors : qr_step;
  const Sides sides = soap_sides(o, rows, cols);
  UpdateWork work = side_work(sides, rows, cols, 1 + rotation_products(keeps_rotated(o)), refresh);
  work.first_bases = first_bases_work(o.basis_first, sides, rows, cols);
  return work;
}

MatrixKind soap_kind() {
  MatrixKind kind = matrix_kind<SoapOptions>("soap");
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const auto& o = options.as<SoapOptions>();
    return rotated_fields(options, soap_sides(o, rows, cols), true, keeps_rotated(o), rows, cols);
  };
  kind.max_dim = [](const MatrixOptions& options) { return options.as<SoapOptions>().max_dim; };
  kind.stated_flops = stated_rotation;
  kind.work = soap_work;
  kind.width_power = [](const MatrixOptions&) { return std::optional(0.5); };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return RotatedAdam<Serial>::refresh_needs(options, soap_rule(options), rows, cols);
  };
  kind.keeps_skew = [](const MatrixOptions& options) {
    return options.as<SoapOptions>().sides == SoapOptions::Sides::both;
  };
  return kind;
}

template <class Space>
class SoapUpdates final : public RotatedUpdates<Space> {
 public:
  SoapUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
      : RotatedUpdates<Space>(soap_rule(options), items) {}
  static bool declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, bool /*computes_bf16*/,
                              std::size_t rows, std::size_t cols) {
    return RotatedUpdates<Space>::declare_in_batch(workspace, options, soap_rule(options), rows, cols);
  }
};

template <class Space>
class Soap final : public RotatedAdam<Space> {
 public:
  using Batch = SoapUpdates<Space>;

  Soap(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : RotatedAdam<Space>(exec, options, soap_rule(options), shape) {}
  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    RotatedAdam<Space>::declare_update(workspace, options, soap_rule(options), rows, cols);
  }
};

}  // namespace

void register_soap() { register_matrix_kind<Soap>(soap_kind()); }

}  // namespace sestina

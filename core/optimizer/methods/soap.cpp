#include "core/optimizer/methods/rotated_adam.hpp"

namespace sestina {
namespace {

RotatedAdamRule rule_of(const MatrixOptions& options) {
  RotatedAdamRule rule;
  rule.adam = {options.number("beta1"), options.number("beta2"), options.number("eps")};
  rule.factor_beta = options.number("factor_beta");
  rule.refresh_every = options.refresh_every;
  if (options.word("basis_refresh") == "eigh") rule.refresh.method = RefreshMethod::eigen_basis;
  rule.refresh.permute = options.flag("permute_second_moment");
  rule.skip_first = options.word("first_step") == "skip";
  rule.factors_first = options.word("factor_update") == "before";
  rule.decay_first = options.word("decay_order") == "before";
  rule.bias_correction = options.flag("bias_correction");
  rule.factor_bias_correction = options.flag("factor_bias_correction");
  rule.keep_rotated = keeps_rotated_momentum(options);
  rule.normalize = options.flag("normalize");
  return rule;
}

}  // namespace

RefreshNeeds soap_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  return RotatedAdam<Serial>::refresh_needs(options, rule_of(options), rows, cols);
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_soap(const Space& exec, const MatrixOptions& options,
                                                  const MatrixShape& shape) {
  return std::make_unique<RotatedAdam<Space>>(exec, options, rule_of(options), shape);
}

template <class Space>
std::size_t scratch_soap(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  return RotatedAdam<Space>::scratch_bytes(options, rule_of(options), rows, cols);
}

#define SESTINA_SOAP(Space)                                                                             \
  template std::size_t scratch_soap<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_soap<Space>(const Space&, const MatrixOptions&, \
                                                                    const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_SOAP)

}  // namespace sestina

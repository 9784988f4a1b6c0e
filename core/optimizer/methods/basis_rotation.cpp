#include "core/optimizer/methods/rotated_adam.hpp"

namespace sestina {
namespace {

RotatedAdamRule rule_of(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  RotatedAdamRule rule;
  rule.adam = {options.number("beta1"), options.number("beta2"), options.number("eps")};
  rule.factor_beta = options.number("factor_beta");
  rule.refresh_every = options.refresh_every;
  rule.skip_first = false;
  rule.factors_first = true;
  rule.decay_first = true;
  rule.keep_rotated = keeps_rotated_momentum(options);
  rule.from_momentum = options.word("source") == "1st";
  rule.release = options.word("dialect") == "release";
  // The published code asks whether there is a left basis to know whether there is any.
  if (rule.release && options.word("geometry") == "unilateral" && rows >= cols) rule.refresh_every = 1;
  return rule;
}

}  // namespace

RefreshNeeds basis_rotation_needs(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const RotatedAdamRule rule = rule_of(options, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  return RotatedAdam<Serial>::refresh_needs(options, rule, rows, cols);
}

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_basis_rotation(const Space& exec, const MatrixOptions& options,
                                                            const MatrixShape& shape) {
  return std::make_unique<RotatedAdam<Space>>(exec, options, rule_of(options, shape.rows, shape.cols), shape);
}

template <class Space>
std::size_t scratch_basis_rotation(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  return RotatedAdam<Space>::scratch_bytes(options, rule_of(options, rows, cols), rows, cols);
}

#define SESTINA_BASIS_ROTATION(Space)                                                                             \
  template std::size_t scratch_basis_rotation<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_basis_rotation<Space>(const Space&, const MatrixOptions&, \
                                                                              const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_BASIS_ROTATION)

}  // namespace sestina

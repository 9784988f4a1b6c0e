#include "core/optimizer/methods/rotated/rotated_adam.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {
namespace {

// Replaces the sum of squares of n numbers by the factor to a root mean square of 1; 1 where they are zero.
template <class Space>
void to_unit_size(const Space& exec, std::size_t n, Vector<double, Space> squares) {
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "unit_size", one, KOKKOS_LAMBDA(std::size_t) {
        squares(0) = squares(0) > 0 ? Kokkos::sqrt(static_cast<double>(n) / squares(0)) : 1.0;
      });
}

// The memory in which the direction is made.
template <class Space>
struct DirectionPieces {
  DirectionPieces(Workspace<Space>& workspace, std::size_t m, std::size_t n)
      : scratch(workspace.template take<float>(m, n)),
        rotated(workspace.template take<float>(m, n)),
        move(workspace.template take<float>(m, n)) {}
  Matrix<float, Space> scratch, rotated, move;
};
template <class Space>
struct NormalizePieces {
  explicit NormalizePieces(Workspace<Space>& workspace) : factor(workspace.template take<double>(1)) {}
  Vector<double, Space> factor;
};

}  // namespace

std::vector<FieldSize> rotated_fields(const MatrixOptions& options, Sides sides, bool factors, bool keep_rotated,
                                      std::int64_t rows, std::int64_t cols) {
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}, {"second_moment", DType::f32, rows, cols}};
  if (factors) add_squares(fields, "factor", sides, rows, cols);
  add_squares(fields, "basis", sides, rows, cols, FieldUse::result);
  add_counters(fields, sides);
  add_jobs(fields, options, sides, rows, cols);
  add_drift(fields, options, sides);
  if (keep_rotated) {
    fields.push_back({"momentum_rotated", DType::f32, rows, cols});
    fields.push_back({"momentum_in_basis", DType::i64, 1, 1});
  }
  set_of_basis(fields, {"basis_left", "basis_right", "second_moment", "momentum_rotated"});
  return fields;
}

template <class Space>
RotatedAdam<Space>::RotatedAdam(const Space& exec, const MatrixOptions& options, const RotatedAdamRule& rule,
                                const MatrixShape& shape)
    : rule_(rule),
      shape_(shape),
      state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
      sides_(state_, options, rule.refresh.first, rule.precision, shape.rows, shape.cols),
      momentum_(state_.matrix("momentum")),
      second_moment_(state_.matrix("second_moment")),
      updates_(state_.counter("updates")),
      started_(state_.counter("started")) {}

template <class Space>
void RotatedAdam<Space>::step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) {
  const bool first = started_ == 0, starts = first && start(stream, matrix.gradient);
  if (first && (rule_.skip_first || !starts)) {
    round_matrix<Space>(stream.exec, matrix.master, matrix.weight);
    if (starts) update_factors(stream, now.gradient_scale, matrix.gradient);
    return;
  }
  ++updates_;
  const bool due = refresh_is_due(stream);
  average_momentum<Space>(stream.exec, rule_.adam.beta1, now.gradient_scale, flat<const float, Space>(matrix.gradient),
                          flat<float, Space>(momentum_));
  if (rule_.factors_first) {
    update_factors(stream, now.gradient_scale, matrix.gradient);
    if (!first) refresh(stream, due);
  }
  update_weight(stream, now, matrix);
  if (!rule_.factors_first) {
    update_factors(stream, now.gradient_scale, matrix.gradient);
    refresh(stream, due);
  }
}

// Starts at the first gradient that is not zero: one of zeros has no eigenvectors worth keeping.
template <class Space>
bool RotatedAdam<Space>::start(Stream<Space>& stream, Matrix<const float, Space> gradient) {
  const std::int64_t t = updates_ + (rule_.skip_first ? 0 : 1);
  if (is_zero<Space>(stream, gradient) || !sides_.first_bases(stream, t, gradient)) return false;
  started_ = 1;
  return true;
}

template <class Space>
void RotatedAdam<Space>::update_factors(Stream<Space>& stream, double gradient_scale,
                                        Matrix<const float, Space> gradient) {
  if (rule_.from_momentum) return;
  const double beta = rule_.factor_beta, squared = gradient_scale * gradient_scale;
  if (!rule_.factor_bias_correction) return sides_.accumulate(stream, beta, (1 - beta) * squared, gradient);
  // The count-th gradient has weight (1 - beta) / (1 - beta^count): a factor that changes is no part of a product.
  const auto count = static_cast<double>(updates_ + (rule_.skip_first ? 1 : 0));
  const double add = (1 - beta) / (1 - std::pow(beta, count));
  for (const Side<Space>* side : {&sides_.left, &sides_.right})
    if (side->on()) {
      const auto factor = side->factor.write();
      scale_values<Space>(stream.exec, 1 - add, flat<float, Space>(factor.view()));
    }
  sides_.accumulate(stream, 1, add * squared, gradient);
}

template <class Space>
bool RotatedAdam<Space>::refresh_is_due(const Stream<Space>& stream) const {
  return refresh_due(updates_, rule_.refresh_every, shape_.index, stream.refresh.policy);
}

template <class Space>
bool RotatedAdam<Space>::repeats(const RefreshPolicy& policy) {
  const bool rotates_momentum = rule_.keep_rotated && state_.counter("momentum_in_basis") == 0;
  return started_ != 0 && !rotates_momentum && !sides_.by_drift() &&
         !refresh_due(updates_ + 1, rule_.refresh_every, shape_.index, policy);
}

template <class Space>
void RotatedAdam<Space>::refresh(Stream<Space>& stream, bool due) {
  const typename TwoSided<Space>::Point point{updates_, due, stream.refresh.policy.is_in_update(shape_.index)};
  const bool is_new = rule_.from_momentum
                          ? refresh_from_momentum<Space>(stream, sides_, rule_, point, momentum_, second_moment_)
                          : sides_.refresh(stream, rule_.refresh, point, {second_moment_, {}, {}});
  if (rule_.keep_rotated && (is_new || (due && !sides_.by_drift()))) state_.counter("momentum_in_basis") = 0;
}

template <class Space>
Matrix<float, Space> RotatedAdam<Space>::direction(Stream<Space>& stream, double gradient_scale,
                                                   Matrix<const float, Space> gradient) {
  const DirectionPieces<Space> p(stream.workspace, shape_.rows, shape_.cols);
  sides_.rotate(stream, static_cast<float>(gradient_scale), gradient, p.scratch, p.rotated);
  rotated_direction(stream, p.rotated, p.scratch, p.move);
  return sides_.rotate_back(stream, p.move, p.scratch);
}

// A rotation is linear: while the bases stay, the rotated momentum is the mean of the rotated gradients. The first
// update after a refresh rotates the momentum itself, so that no error outlives the bases.
template <class Space>
void RotatedAdam<Space>::rotated_direction(Stream<Space>& stream, Matrix<const float, Space> rotated,
                                           Matrix<float, Space> scratch, Matrix<float, Space> move) {
  const auto v = flat<float, Space>(second_moment_);
  const bool known = rule_.keep_rotated && state_.counter("momentum_in_basis") == 1;
  if (known)
    return adam_direction<Space>(stream.exec, rule_.adam, 1, flat<const float, Space>(rotated),
                                 flat<float, Space>(state_.matrix("momentum_rotated")), v, flat<float, Space>(move));
  sides_.rotate(stream, 1, momentum_, scratch, move);
  if (rule_.keep_rotated) {
    copy_matrix<Space>(stream.exec, false, move, state_.matrix("momentum_rotated"));
    state_.counter("momentum_in_basis") = 1;
  }
  rotated_adam<Space>(stream.exec, rule_.adam, flat<const float, Space>(rotated), v, flat<float, Space>(move));
}

template <class Space>
WeightMove RotatedAdam<Space>::weight_move(const Stream<Space>& stream, const UpdateNumbers& now) const {
  WeightMove move{now.lr, 1, now.weight_decay, rule_.decay_first, stream.nonfinite};
  if (rule_.bias_correction) {
    const auto t = static_cast<double>(updates_);
    move.scale = std::sqrt(1 - std::pow(rule_.adam.beta2, t)) / (1 - std::pow(rule_.adam.beta1, t));
  }
  return move;
}

template <class Space>
void RotatedAdam<Space>::update_weight(Stream<Space>& stream, const UpdateNumbers& now,
                                       const OwnedMatrix<Space>& matrix) {
  const auto frame = stream.workspace.frame();
  const Matrix<float, Space> update = direction(stream, now.gradient_scale, matrix.gradient);
  Vector<double, Space> factor;
  if (rule_.normalize) {
    factor = NormalizePieces<Space>(stream.workspace).factor;
    sum_of_squares_to<Space, float>(stream.exec, flat<const float, Space>(update), stream.workspace, factor);
    to_unit_size<Space>(stream.exec, update.size(), factor);
  }
  move_weight<Space, float>(stream.exec, weight_move(stream, now), flat<float, Space>(update),
                            flat<float, Space>(matrix.master), flat<bf16, Space>(matrix.weight), factor);
}

template <class Space>
void RotatedAdam<Space>::declare_update(Workspace<Space>& workspace, const MatrixOptions& options,
                                        const RotatedAdamRule& rule, std::size_t rows, std::size_t cols) {
  const Sides sides = sides_with_bases(fields_of(options, rows, cols));
  declare_first_bases<Space>(workspace, rule.refresh.first, sides, rows, cols);
  if (!rule.from_momentum) declare_products<Space>(workspace, rule.precision, rows, cols);
  if (rule.from_momentum)
    declare_refresh_from_momentum<Space>(workspace, sides, rule, rows, cols);
  else
    declare_side_refreshes<Space>(workspace, sides, rule.refresh, rows, cols);
  const auto frame = workspace.frame();
  const DirectionPieces<Space> pieces(workspace, rows, cols);
  declare_products<Space>(workspace, rule.precision, rows, cols);
  if (!rule.normalize) return;
  const NormalizePieces<Space> factor(workspace);
  declare<SumScratch<Space>>(workspace, rows * cols);
}

template <class Space>
RefreshNeeds RotatedAdam<Space>::refresh_needs(const MatrixOptions& options, const RotatedAdamRule& rule,
                                               std::int64_t rows, std::int64_t cols) {
  const auto m = static_cast<std::size_t>(rows), n = static_cast<std::size_t>(cols);
  return two_sided_needs(options, sides_with_bases(fields_of(options, m, n)), rule.refresh, rows, cols);
}

#define SESTINA_ROTATED_ADAM(Space) template class RotatedAdam<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_ADAM)

}  // namespace sestina

// Low-rank adaptation (Hu et al. 2021) as a form of weights: W = W0 + (alpha / rank) B A, W0 frozen
// (core/model/lora_linear.cpp).
#include "core/layout/lora_form.hpp"

#include <algorithm>
#include <cmath>

namespace sestina {
namespace {

// Cuts the factor at the side that tensor parallelism cuts. The other one is whole on all ranks, each of which sums its
// gradient over its own part of the layer, as over its heads.
void cut_with(const TensorSpec& dense, TensorSpec& base, TensorSpec& down, TensorSpec& up) {
  base.cut = dense.cut;
  const bool inputs = dense.cut == TensorCut::cols;
  TensorSpec &own = inputs ? down : up, &whole = inputs ? up : down;
  own.cut = dense.cut;
  own.gradient_of = dense.gradient_of;
  if (dense.cut != TensorCut::none) whole.gradient_of = GradientOf::heads;
}

std::vector<TensorSpec> parts(const LinearOptions& o, const TensorSpec& dense) {
  TensorSpec base = weight_part(dense, lora_base, "base", dense.rows, dense.cols, Role::matrix);
  base.trainable = false;
  base.stored = Stored::compute;
  base.initial = Initial::zeros;
  TensorSpec down = weight_part(dense, lora_down, "lora_a", o.rank, dense.cols, Role::matrix);
  down.initial_range = 1 / std::sqrt(3 * static_cast<double>(dense.cols));  // variance of the published uniform one
  TensorSpec up = weight_part(dense, lora_up, "lora_b", dense.rows, o.rank, Role::matrix);
  up.initial = Initial::zeros;
  cut_with(dense, base, down, up);
  return {base, down, up};
}

FormScratch scratch(const LinearOptions& o, const FormShape& s) {
  const auto piece = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t thin = piece(s.rows * static_cast<std::size_t>(o.rank) * s.element);
  const std::size_t wide = piece(s.rows * std::max(s.in, s.out) * s.element);
  const std::size_t dense = piece(s.out * s.in * s.accumulate);
  return {thin + wide, thin + wide, 2 * dense};
}

// Returns the products of a layer. W0 takes part only in y and dx: it has no gradient. Both factors take part in y and
// dx and have gradients; x A^T is made again for that of B.
FormWork work(const LinearOptions& o, std::int64_t out, std::int64_t in) {
  const auto m = static_cast<double>(out), n = static_cast<double>(in), r = static_cast<double>(o.rank);
  const double forward = 2 * m * n + 2 * r * n + 2 * r * m, gradients = 2 * (2 * r * n) + 2 * r * m;
  return {.per_row = 2 * forward + gradients};
}

}  // namespace

WeightForm lora_form() {
  WeightForm form;
  form.name = "lora";
  form.parts = parts;
  form.fits = [](const LinearOptions&, const TensorSpec&) { return true; };  // see linear_defects
  form.kept = [](const LinearOptions&, std::int64_t, std::int64_t) { return std::int64_t{0}; };
  form.passed = [](const LinearOptions& o, std::int64_t, std::int64_t) { return o.rank; };
  form.scratch = scratch;
  form.work = work;
  form.merge_every = [](const LinearOptions&) { return std::int64_t{0}; };
  form.normalised = [](const LinearOptions&) { return false; };
  return form;
}

}  // namespace sestina

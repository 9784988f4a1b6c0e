// Trained weights in 8 bits, without a master (optimizer.weight_bits = 8): one tensor of coded rows, whose gradient is
// the dense weight's. The passes are in core/model/linear_form.cpp, the update is move_coded of
// kernels/optimizer/matrix_update.hpp.
#include "core/layout/weight_form.hpp"

namespace sestina {
namespace {

std::vector<TensorSpec> coded_part(const LinearOptions& o, const TensorSpec& dense) {
  TensorSpec spec = weight_part(dense, 0, "int8", dense.rows, dense.cols, Role::matrix);
  spec.stored = Stored::coded_rows;
  spec.group = o.group_size;
  return {spec};
}

// Returns the scratch for the weight as it is computed with.
FormScratch decoded(const LinearOptions&, const FormShape& s) {
  const std::size_t weight = (s.out * s.in * s.element + 255) / 256 * 256;
  return {weight, weight, 0};
}

}  // namespace

WeightForm int8_form() {
  WeightForm form;
  form.name = "int8";
  form.parts = coded_part;
  form.fits = [](const LinearOptions&, const TensorSpec&) { return true; };
  form.kept = [](const LinearOptions&, std::int64_t, std::int64_t) { return std::int64_t{0}; };
  form.passed = [](const LinearOptions&, std::int64_t, std::int64_t) { return std::int64_t{0}; };
  form.scratch = decoded;
  form.work = [](const LinearOptions&, std::int64_t out, std::int64_t in) {  // the products of the dense weight
    return FormWork{.per_row = 6 * static_cast<double>(out * in)};
  };
  form.merge_every = [](const LinearOptions&) { return std::int64_t{0}; };
  form.normalised = [](const LinearOptions&) { return false; };
  return form;
}

}  // namespace sestina

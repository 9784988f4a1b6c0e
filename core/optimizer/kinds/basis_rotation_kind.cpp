// Adam in a rotated basis against stale gradients (arXiv 2602.03515): the corrected rules by default, those of the
// published code as dialect "release".
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

RefreshNeeds basis_rotation_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
namespace {

Sides rotated_sides(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  return options.word("geometry") == "bilateral" ? Sides{} : shorter_side(rows, cols);
}

std::vector<FieldSize> basis_rotation_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  return rotated_fields(options, rotated_sides(options, rows, cols), options.word("source") == "2nd", rows, cols);
}

}  // namespace

MatrixKind basis_rotation_kind() {
  MatrixKind kind;
  kind.name = "basis-rotation";
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.refresh_needs = basis_rotation_needs;
  kind.keeps_skew = [](const MatrixOptions& options) { return options.word("geometry") == "bilateral"; };
  kind.keys = {
      number_key("beta1", 0.9, below_one),
      number_key("beta2", 0.999, below_one),
      eps_key("eps", 1e-8),
      number_key("factor_beta", 0.999, below_one),
      word_key("source", {"2nd", "1st"}),
      word_key("geometry", {"bilateral", "unilateral"}),
      word_key("basis_first", {"eigh", "svd"}),
      word_key("momentum_basis", {"original", "rotated"}),
      word_key("dialect", {"corrected", "release"}),
  };
  kind.state = basis_rotation_fields;
  kind.stated_flops = stated_rotation;
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {  // rotations, and a factor
    const double factor = options.word("source") == "2nd" ? 1 : 0;
    return side_work(rotated_sides(options, rows, cols), rows, cols, factor + rotation_products(options), qr_step);
  };
  return kind;
}

}  // namespace sestina

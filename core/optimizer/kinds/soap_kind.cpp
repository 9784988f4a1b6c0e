// SOAP (Vyas et al., arXiv 2409.11321): the dialect of its authors by default, every known difference as a switch.
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

RefreshNeeds soap_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
namespace {

Sides soap_sides(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const Sides sides = options.word("sides") == "both" ? Sides{} : shorter_side(rows, cols);
  return not_longer(sides, options.integer("max_dim"), rows, cols);
}

std::vector<FieldSize> soap_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const Sides sides = soap_sides(options, rows, cols);
  return rotated_fields(options, sides, true, rows, cols);
}

}  // namespace

MatrixKind soap_kind() {
  MatrixKind kind;
  kind.name = "soap";
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.refresh_needs = soap_needs;
  kind.keeps_skew = [](const MatrixOptions& options) { return options.word("sides") == "both"; };
  kind.keys = {
      number_key("beta1", 0.95, below_one),
      number_key("beta2", 0.95, below_one),
      eps_key("eps", 1e-8),
      number_key("factor_beta", 0.95, below_one),
      integer_key("max_dim", 10000, {.min = 1}),
      word_key("sides", {"both", "smaller"}),
      word_key("first_step", {"skip", "use"}),
      word_key("factor_update", {"after", "before"}),
      word_key("decay_order", {"after", "before"}),
      flag_key("bias_correction", true),
      flag_key("factor_bias_correction", false),
      flag_key("permute_second_moment", true),
      word_key("basis_first", {"eigh", "svd"}),
      word_key("basis_refresh", {"qr", "eigh"}),
      word_key("momentum_basis", {"original", "rotated"}),
      flag_key("normalize", false),
  };
  kind.state = soap_fields;
  kind.stated_flops = stated_rotation;
  kind.work = [](const MatrixOptions& options, std::int64_t rows,
                 std::int64_t cols) {  // factor a^2 b, and rotations
    const double refresh = options.word("basis_refresh") == "eigh" ? all_eigenvectors : qr_step;
    return side_work(soap_sides(options, rows, cols), rows, cols, 1 + rotation_products(options), refresh);
  };
  return kind;
}

}  // namespace sestina

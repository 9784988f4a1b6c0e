// KL-Shampoo and KL-SOAP (arXiv 2509.03378), as their authors define them, but for where the eigenvalues start.
#include "core/optimizer/kinds/kl_keys.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

RefreshNeeds kl_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
namespace {

std::vector<FieldSize> kl_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}};
  if (options.kind == "kl-soap") fields.push_back({"second_moment", DType::f32, rows, cols});
  add_squares(fields, "factor", {}, rows, cols);
  add_squares(fields, "basis", {}, rows, cols, FieldUse::result);
  add_vectors(fields, "eigenvalue", {}, rows, cols);
  add_counters(fields, {});
  add_jobs(fields, options, Sides{}, rows, cols);
  set_of_basis(fields, {"basis_left", "basis_right", "second_moment", "eigenvalue_left", "eigenvalue_right"});
  return fields;
}

}  // namespace

MatrixKind kl_kind(std::string name) {
  const DeckRange rate{.min = 0, .max = 1};
  MatrixKind kind;
  kind.name = std::move(name);
  kind.weight_decay = 0.01;
  kind.refresh_every = 10;
  kind.refresh_needs = kl_needs;
  kind.keeps_skew = [](const MatrixOptions&) { return true; };
  kind.keys = {
      number_key("beta1", 0.9, rate),
      eps_key("eps", 1e-8),
      number_key("factor_beta", 0.98, rate),
      word_key("eigenvalue_start", {"gradient", "given"}),
      number_key("initial_eigenvalue", 0.1, {.min = 0, .open_min = true}),  // where it is given
      flag_key("clamp", true),
      number_key("clamp_floor", 10),
      number_key("clamp_ceiling", 4000),
      flag_key("sort", false),
      word_key("basis_first", {"eigh", "svd"}),
      word_key("first_step", {"skip", "use"}),
      word_key("decay_order", {"after", "before"}),
  };
  kind.state = kl_fields;
  return kind;
}

UpdateWork kl_work(std::int64_t rows, std::int64_t cols, double per_product) {
  return side_work({}, rows, cols, per_product, qr_step);
}

MatrixKind kl_shampoo_kind() {
  MatrixKind kind = kl_kind("kl-shampoo");
  kind.stated_flops = stated_roots;
  // By side: whitening 4 a^2 b and a factor a^2 b for the estimate, 4 a^2 b for the direction.
  kind.work = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) { return kl_work(rows, cols, 9); };
  return kind;
}

}  // namespace sestina

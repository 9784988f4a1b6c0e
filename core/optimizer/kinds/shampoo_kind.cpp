#include <algorithm>

#include "core/optimizer/kinds/shampoo_layout.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

RefreshNeeds shampoo_needs(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
namespace {

// Beginnings of the pieces of `size` of at most `most`.
std::vector<std::size_t> cuts(std::size_t size, std::size_t most) {
  std::vector<std::size_t> begins;
  for (std::size_t begin = 0; begin < size; begin += most) begins.push_back(begin);
  return begins;
}

FieldSize matrix_field(std::string name, std::size_t rows, std::size_t cols, FieldUse use = FieldUse::update) {
  FieldSize field{std::move(name), DType::f32, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)};
  field.use = use;
  return field;
}

// What one side of a block keeps; the basis only where it is kept up to date.
void add_side(const MatrixOptions& options, const std::string& prefix, const std::string& side, std::size_t d,
              std::vector<FieldSize>& fields) {
  if (options.flag("packed"))
    fields.push_back(matrix_field(prefix + "factor_" + side + "_packed", d * (d + 1) / 2, 1));
  else
    fields.push_back(matrix_field(prefix + "factor_" + side, d, d));
  fields.push_back(matrix_field(prefix + "inverse_root_" + side, d, d, FieldUse::result));
  if (options.word("root") == "qr") fields.push_back(matrix_field(prefix + "basis_" + side, d, d, FieldUse::result));
}

std::vector<FieldSize> shampoo_state(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const ShampooLayout layout = shampoo_layout(options, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}};
  if (graft_has_second_moment(options.word("graft"))) fields.push_back({"second_moment", DType::f32, rows, cols});
  for (const ShampooBlock& block : layout.blocks) {
    add_side(options, block.prefix, "left", block.rows, fields);
    if (!layout.is_vector) add_side(options, block.prefix, "right", block.cols, fields);
  }
  std::vector<FieldSize> snapshots;
  for (const ShampooBlock& block : layout.blocks) {
    snapshots.push_back(matrix_field(block.prefix + "snapshot_left", block.rows, block.rows));
    if (!layout.is_vector) snapshots.push_back(matrix_field(block.prefix + "snapshot_right", block.cols, block.cols));
  }
  add_jobs(fields, options, snapshots);
  set_of_basis(fields, {"basis_left", "basis_right"});
  const auto sides = static_cast<std::int64_t>(2 * layout.blocks.size());
  fields.push_back({"updates", DType::i64, 1, 1});
  fields.push_back({"failures", DType::i64, sides, 1});   // in a row, by block: left, right
  fields.push_back({"refreshes", DType::i64, sides, 1});  // good ones
  return fields;
}

// By side of each block: a factor of a^2 b, the root applied 2 a^2 b.
UpdateWork shampoo_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const std::string& root = options.word("root");
  const double refresh = root == "qr" ? qr_step : root == "eigh" ? all_eigenvectors : newton_root;
  const ShampooLayout layout = shampoo_layout(options, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  UpdateWork sum;
  for (const ShampooBlock& block : layout.blocks) {
    const UpdateWork work = side_work({true, !layout.is_vector}, static_cast<std::int64_t>(block.rows),
                                      static_cast<std::int64_t>(block.cols), 3, refresh);
    sum.update += work.update;
    sum.refresh += work.refresh;
  }
  return sum;
}

}  // namespace

ShampooLayout shampoo_layout(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const auto most = static_cast<std::size_t>(options.integer("max_dim"));
  ShampooLayout layout{rows, cols, false, {}};
  if (options.flag("merge_dims") && rows * cols <= most) layout = {rows * cols, 1, true, {}};
  const std::vector<std::size_t> row_cuts = cuts(layout.rows, most), col_cuts = cuts(layout.cols, most);
  const bool several = row_cuts.size() * col_cuts.size() > 1;
  for (std::size_t i = 0; i < row_cuts.size(); ++i)
    for (std::size_t j = 0; j < col_cuts.size(); ++j) {
      const std::string prefix = several ? "block_" + std::to_string(i) + "_" + std::to_string(j) + "." : "";
      layout.blocks.push_back({row_cuts[i], col_cuts[j], std::min(most, layout.rows - row_cuts[i]),
                               std::min(most, layout.cols - col_cuts[j]), prefix});
    }
  return layout;
}

// eps: what rounding leaves of a factor whose largest eigenvalues are about 1e-3, which is what clipped gradients of a
// language model have. Below that, eigenvalues in fp32 are noise, and the inverse root would enlarge it.
MatrixKind shampoo_kind() {
  const DeckRange share = {.min = 0, .max = 1};
  return {
      .name = "shampoo",
      .keys = {number_key("beta1", 0.9, {.min = 0, .max = 1, .open_max = true}),
               number_key("beta2", 0.95, share),                                  // 1: a sum
               number_key("beta3", -1, {.min = -1, .max = 1, .open_max = true}),  // -1: beta1
               eps_key("eps", 1e-10), number_key("exponent", 0.25, {.min = 0, .open_min = true}),
               integer_key("max_dim", 1024, {.min = 1}), integer_key("start_step", 0),  // 0: refresh_every
               flag_key("bias_correction", true), word_key("graft", {"adam", "none", "sgd", "adagrad", "rmsprop"}),
               number_key("graft_beta2", 0.95, share), eps_key("graft_eps", 1e-8),
               word_key("root", {"qr", "eigh", "newton"}), number_key("qr_tolerance", 0.01),
               integer_key("qr_iterations", 1, {.min = 1}), word_key("perturb", {"before", "after"}),
               word_key("decay_order", {"before", "after"}), flag_key("merge_dims", false), flag_key("packed", false)},
      .refresh_every = 10,
      .state = shampoo_state,
      .stated_flops = stated_roots,
      .work = shampoo_work,
      .refresh_needs = shampoo_needs,
      .keeps_skew = [](const MatrixOptions&) { return true; }};
}

}  // namespace sestina

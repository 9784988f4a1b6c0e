#include "core/optimizer/methods/shampoo/shampoo.hpp"

#include <algorithm>

#include "core/optimizer/base/sides.hpp"

namespace sestina {

void ShampooOptions::fields(OptionFields& f) {
  constexpr DeckRange share = {.min = 0, .max = 1};
  f.number("beta1", beta1, below_one);
  f.number("beta2", beta2, share);
  f.number("beta3", beta3, {.min = -1, .max = 1, .open_max = true});
  f.eps("eps", eps);
  f.number("exponent", exponent, {.min = 0, .open_min = true});
  f.integer("max_dim", max_dim, {.min = 1});
  f.integer("start_step", start_step);
  f.flag("bias_correction", bias_correction);
  f.choice("graft", graft, {"adam", "none", "sgd", "adagrad", "rmsprop"});
  f.number("graft_beta2", graft_beta2, share);
  f.eps("graft_eps", graft_eps);
  f.choice("root", root, {"qr", "eigh", "newton"});
  f.number("qr_tolerance", qr_tolerance);
  f.integer("qr_iterations", qr_iterations, {.min = 1});
  f.choice("perturb", perturb, {"after", "before"});
  f.choice("decay_order", decay_order, {"after", "before"});
  f.flag("merge_dims", merge_dims);
  f.flag("packed", packed);
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

namespace {

// Returns where the pieces of `size` begin, each of at most `most`.
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

// Adds the fields of one side of a block; the basis only where it is kept up to date.
void add_side(const ShampooOptions& options, const std::string& prefix, const std::string& side, std::size_t d,
              std::vector<FieldSize>& fields) {
  if (options.packed)
    fields.push_back(matrix_field(prefix + "factor_" + side + "_packed", d * (d + 1) / 2, 1));
  else
    fields.push_back(matrix_field(prefix + "factor_" + side, d, d));
  fields.push_back(matrix_field(prefix + "inverse_root_" + side, d, d, FieldUse::result));
  if (options.root == ShampooOptions::Root::qr)
    fields.push_back(matrix_field(prefix + "basis_" + side, d, d, FieldUse::result));
}

}  // namespace

std::vector<FieldSize> shampoo_state(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<ShampooOptions>();
  const ShampooLayout layout = shampoo_layout(o, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}};
  if (o.grafts_by_moment()) fields.push_back({"second_moment", DType::f32, rows, cols});
  for (const ShampooBlock& block : layout.blocks) {
    add_side(o, block.prefix, "left", block.rows, fields);
    if (!layout.is_vector) add_side(o, block.prefix, "right", block.cols, fields);
  }
  std::vector<FieldSize> snapshots;
  for (const ShampooBlock& block : layout.blocks) {
    const auto add = [&](const char* side, std::size_t d) {
      snapshots.push_back(packed_snapshot(options, block.prefix + "snapshot_" + side, static_cast<std::int64_t>(d)));
    };
    add("left", block.rows);
    if (!layout.is_vector) add("right", block.cols);
  }
  add_jobs(fields, options, snapshots);
  set_of_basis(fields, {"basis_left", "basis_right"});
  const auto sides = static_cast<std::int64_t>(2 * layout.blocks.size());
  fields.push_back({"updates", DType::i64, 1, 1});
  fields.push_back({"failures", DType::i64, sides, 1});   // in a row, by block: left, right
  fields.push_back({"refreshes", DType::i64, sides, 1});  // good ones
  return fields;
}

// Returns the work, by side of each block: a factor of a^2 b, the root applied 2 a^2 b.
UpdateWork shampoo_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  using Root = ShampooOptions::Root;
  const auto& o = options.as<ShampooOptions>();
  const double refresh = o.root == Root::qr ? qr_step : o.root == Root::eigh ? all_eigenvectors : newton_root;
  const ShampooLayout layout = shampoo_layout(o, static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
  UpdateWork sum;
  for (const ShampooBlock& block : layout.blocks) {
    const UpdateWork work = side_work({true, !layout.is_vector}, static_cast<std::int64_t>(block.rows),
                                      static_cast<std::int64_t>(block.cols), 3, refresh);
    sum.update += work.update;
    sum.refresh += work.refresh;
  }
  return sum;
}

ShampooLayout shampoo_layout(const ShampooOptions& options, std::size_t rows, std::size_t cols) {
  const auto most = static_cast<std::size_t>(options.max_dim);
  ShampooLayout layout{rows, cols, false, {}};
  if (options.merge_dims && rows * cols <= most) layout = {rows * cols, 1, true, {}};
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

}  // namespace sestina

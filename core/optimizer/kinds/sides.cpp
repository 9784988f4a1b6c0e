#include "core/optimizer/kinds/sides.hpp"

#include <algorithm>
#include <utility>

namespace sestina {

Sides shorter_side(std::int64_t rows, std::int64_t cols) { return {rows < cols, rows >= cols}; }

Sides not_longer(Sides sides, std::int64_t max_dim, std::int64_t rows, std::int64_t cols) {
  return {sides.left && rows <= max_dim, sides.right && cols <= max_dim};
}

void add_squares(std::vector<FieldSize>& fields, const std::string& name, Sides sides, std::int64_t rows,
                 std::int64_t cols, FieldUse use) {
  if (sides.left) fields.push_back({name + "_left", DType::f32, rows, rows, false, use});
  if (sides.right) fields.push_back({name + "_right", DType::f32, cols, cols, false, use});
}

void add_vectors(std::vector<FieldSize>& fields, const std::string& name, Sides sides, std::int64_t rows,
                 std::int64_t cols) {
  if (sides.left) fields.push_back({name + "_left", DType::f32, rows, 1});
  if (sides.right) fields.push_back({name + "_right", DType::f32, cols, 1});
}

void add_counters(std::vector<FieldSize>& fields, Sides sides) {
  fields.push_back({"updates", DType::i64, 1, 1});
  fields.push_back({"started", DType::i64, 1, 1});
  if (sides.left) fields.push_back({"failures_left", DType::i64, 1, 1});
  if (sides.right) fields.push_back({"failures_right", DType::i64, 1, 1});
}

void add_jobs(std::vector<FieldSize>& fields, const MatrixOptions& options, const std::vector<FieldSize>& snapshots) {
  if (options.refresh_staleness == 0 || snapshots.empty()) return;
  for (const FieldSize& snapshot : snapshots) {
    fields.push_back(snapshot);
    fields.back().optional = true;
    fields.back().use = FieldUse::refresh;
  }
  const auto count = static_cast<std::int64_t>(snapshots.size());
  fields.push_back({"dispatched", DType::i64, count, 1, true});
  fields.push_back({"computed_from", DType::i64, count, 1, true});
}

void add_jobs(std::vector<FieldSize>& fields, const MatrixOptions& options, Sides sides, std::int64_t rows,
              std::int64_t cols) {
  std::vector<FieldSize> snapshots;
  add_squares(snapshots, "snapshot", sides, rows, cols);
  add_jobs(fields, options, snapshots);
}

Sides sides_with_bases(const std::vector<FieldSize>& fields) {
  Sides sides{false, false};
  for (const FieldSize& field : fields) {
    sides.left = sides.left || field.name == "basis_left";
    sides.right = sides.right || field.name == "basis_right";
  }
  return sides;
}

bool keeps_rotated_momentum(const MatrixOptions& options) { return options.word("momentum_basis") == "rotated"; }

std::vector<FieldSize> rotated_fields(const MatrixOptions& options, Sides sides, bool factors, std::int64_t rows,
                                      std::int64_t cols) {
  std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}, {"second_moment", DType::f32, rows, cols}};
  if (factors) add_squares(fields, "factor", sides, rows, cols);
  add_squares(fields, "basis", sides, rows, cols, FieldUse::result);
  add_counters(fields, sides);
  add_jobs(fields, options, sides, rows, cols);
  if (keeps_rotated_momentum(options) && (sides.left || sides.right)) {
    fields.push_back({"momentum_rotated", DType::f32, rows, cols});
    fields.push_back({"momentum_in_basis", DType::i64, 1, 1});
  }
  set_of_basis(fields, {"basis_left", "basis_right", "second_moment", "momentum_rotated"});
  return fields;
}

std::vector<FieldSize> fields_of(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr, "no matrix optimizer \"{}\"", options.kind);
  std::vector<FieldSize> fields =
      kind->state(options, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
  for (FieldSize& field : fields)
    if (!options.pages(field.name)) field.use = FieldUse::always;
  return fields;
}

LowRank low_rank_of(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const std::int64_t shorter = std::min(rows, cols), asked = options.integer("rank");
  const std::string& side = options.word("side");
  LowRank low;
  low.rank = asked == 0 ? std::max<std::int64_t>(1, shorter / 4) : std::min(asked, shorter);
  low.right = side == "right" || (side == "auto" && rows >= cols);
  return low;
}

MatrixKind low_rank_kind(std::string name, double scale, std::vector<std::string> sources) {
  sources.emplace_back("given");
  MatrixKind kind;
  kind.name = std::move(name);
  kind.weight_decay = 0;
  kind.refresh_every = 200;
  kind.keys = {
      integer_key("rank", 0),
      word_key("side", {"auto", "left", "right"}),
      number_key("scale", scale),
      number_key("beta1", 0.9, below_one),
      number_key("beta2", 0.999, below_one),
      eps_key("eps", 1e-6),
      word_key("projector", std::move(sources)),
      integer_key("projector_bits", 32),
      integer_key("weight_bits", 32),
      word_key("decay_order", {"after", "before"}),
  };
  return kind;
}

bool has_coded_projector(const MatrixOptions& options) { return options.integer("projector_bits") < 32; }

namespace {

void add_projector(std::vector<FieldSize>& fields, const MatrixOptions& options, const LowRank& low, std::int64_t rows,
                   std::int64_t cols) {
  const std::int64_t p_rows = low.right ? low.rank : rows, p_cols = low.right ? cols : low.rank, n = p_rows * p_cols;
  if (!has_coded_projector(options)) {
    fields.push_back({"projector", DType::f32, p_rows, p_cols, false, FieldUse::result});
    return;
  }
  const auto group = static_cast<std::int64_t>(projector_group), groups = (n + group - 1) / group;
  fields.push_back({"projector_codes", DType::u8, (n * options.integer("projector_bits") + 7) / 8 + groups, 1});
  fields.push_back({"projector_scales", DType::f32, groups, 1});
}

}  // namespace

std::vector<FieldSize> low_rank_fields(const MatrixOptions& options, std::int64_t rows, std::int64_t cols,
                                       std::int64_t block) {
  const LowRank low = low_rank_of(options, rows, cols);
  const std::int64_t small_rows = low.right ? rows : low.rank, small_cols = low.right ? low.rank : cols;
  std::vector<FieldSize> fields;
  add_projector(fields, options, low, rows, cols);
  for (const char* name : {"momentum", "second_moment"})
    if (block > 0)
      add_coded_fields(fields, name, small_rows, small_cols, block);
    else
      fields.push_back({name, DType::f32, small_rows, small_cols});
  for (FieldSize& field : fields) field.of_basis = true;
  add_counters(fields, {false, false});
  return fields;
}

}  // namespace sestina

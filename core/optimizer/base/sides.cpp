#include "core/optimizer/base/sides.hpp"

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

std::vector<FieldSize> fields_of(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr, "no matrix optimizer \"{}\"", options.kind);
  std::vector<FieldSize> fields =
      kind->state(options, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
  for (FieldSize& field : fields) field.tier = options.tier_of(field.name);
  return fields;
}

}  // namespace sestina

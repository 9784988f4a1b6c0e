#include "core/optimizer/base/sides.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sestina {

Sides shorter_side(std::int64_t rows, std::int64_t cols) { return {rows < cols, rows >= cols}; }

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

FieldSize packed_snapshot(const MatrixOptions& options, const std::string& name, std::int64_t d) {
  return {name, options.snapshot_bf16 ? DType::bf16 : DType::f32, d * (d + 1) / 2};
}

double snapshot_work(const FieldSize& field) {
  const auto rows = static_cast<double>(field.rows), cols = static_cast<double>(field.cols);
  if (field.cols > 1) return rows * cols * std::min(rows, cols);
  return std::pow((std::sqrt(8 * rows + 1) - 1) / 2, 3);
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
  if (sides.left) snapshots.push_back(packed_snapshot(options, "snapshot_left", rows));
  if (sides.right) snapshots.push_back(packed_snapshot(options, "snapshot_right", cols));
  add_jobs(fields, options, snapshots);
}

void add_drift(std::vector<FieldSize>& fields, const MatrixOptions& options, Sides sides) {
  if (options.refresh_drift == 0) return;
  if (sides.left) fields.push_back({"drifted_left", DType::i64, 1, 1, true});
  if (sides.right) fields.push_back({"drifted_right", DType::i64, 1, 1, true});
}

Sides sides_with_bases(const std::vector<FieldSize>& fields) {
  Sides sides{false, false};
  for (const FieldSize& field : fields) {
    sides.left = sides.left || field.name == "basis_left";
    sides.right = sides.right || field.name == "basis_right";
  }
  return sides;
}

namespace {

// A vector is not worth a block, and a counter is read outside of updates.
bool has_state_tier(Tier tier, const FieldSize& field) {
  return tier != Tier::device && field.dtype != DType::i64 && field.cols > 1;
}

}  // namespace

std::vector<FieldSize> fields_of(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  const MatrixKind* kind = find_matrix_kind(options.kind);
  SESTINA_REQUIRE(kind != nullptr, "no matrix optimizer \"{}\"", options.kind);
  std::vector<FieldSize> fields =
      kind->state(options, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols));
  for (FieldSize& field : fields) {
    const bool stays = field.use == FieldUse::always;
    if (stays && has_state_tier(options.state_tier, field)) field.use = FieldUse::moment;
    field.tier = stays ? options.state_tier : options.tier_of(field.name);
  }
  return fields;
}

namespace {

constexpr double stated_iterations = 5, stated_period = 10, stated_longest_side = 10000;

// Returns the FLOPs per side of length a: products of a^2 b, and of a^3 at a refresh.
double stated_sides(double rows, double cols, double per_product, double per_refresh) {
  const auto side = [&](double a, double b) {
    return a > stated_longest_side ? 0 : per_product * a * a * b + per_refresh * a * a * a / stated_period;
  };
  return side(rows, cols) + side(cols, rows);
}

}  // namespace

double stated_products(double rows, double cols) {
  return stated_shard_products(std::min(rows, cols), std::max(rows, cols), true);
}
double stated_shard_products(double side, double length, bool counted) {
  return stated_iterations * ((counted ? 4 : 2) * length * side * side + 2 * side * side * side);
}
double stated_rotation(double rows, double cols) { return stated_sides(rows, cols, 8, qr_step); }
double stated_roots(double rows, double cols) { return stated_sides(rows, cols, 4, all_eigenvectors); }

UpdateWork side_work(Sides sides, std::int64_t rows, std::int64_t cols, double per_product, double per_refresh) {
  UpdateWork work;
  const auto add = [&](double a, double b) {
    work.update += per_product * a * a * b;
    work.refresh += per_refresh * a * a * a;
  };
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  if (sides.left) add(r, c);
  if (sides.right) add(c, r);
  return work;
}

// Returns the work with k the shorter side and d the longer one: the Gram matrix k^2 d and its eigenvectors, or an SVD
// of the whole; the longer side's own vectors 2 k^2 d, made orthonormal and completed by a QR with all of its Q,
// 2 d k^2 - 2/3 k^3 + 4 (d^2 k - d k^2 + k^3 / 3) (Golub and Van Loan, 5.2).
double first_bases_work(BasisForm form, Sides sides, std::int64_t rows, std::int64_t cols) {
  if (!sides.left && !sides.right) return 0;
  const auto k = static_cast<double>(std::min(rows, cols)), d = static_cast<double>(std::max(rows, cols));
  const double cube = k * k * k;
  const bool longer = rows > cols ? sides.left : sides.right;
  double flops =
      form == BasisForm::svd ? svd_products * k * k * d + svd_vectors * cube : k * k * d + all_eigenvectors * cube;
  if (!longer) return flops;
  if (form == BasisForm::gram) flops += 2 * k * k * d;
  if (d > k) flops += 2 * d * k * k - 2 * cube / 3 + 4 * (d * d * k - d * k * k + cube / 3);
  return flops;
}

}  // namespace sestina

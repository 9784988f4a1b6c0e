#include "core/optimizer/base/work.hpp"

#include <algorithm>

namespace sestina {
namespace {

constexpr double stated_iterations = 5, stated_period = 10, stated_longest_side = 10000;

// Per side of length a: products of a^2 b, and of a^3 at a refresh.
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

// With k the shorter side and d the longer one: the Gram matrix k^2 d and its eigenvectors, or an SVD of the whole; the
// longer side's own vectors 2 k^2 d, made orthonormal and completed by a QR with all of its Q, 2 d k^2 - 2/3 k^3 +
// 4 (d^2 k - d k^2 + k^3 / 3) (Golub and Van Loan, 5.2).
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

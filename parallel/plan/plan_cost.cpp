#include "parallel/plan/plan_cost.hpp"

#include <algorithm>
#include <cmath>

#include "core/optimizer/kinds/routing.hpp"

namespace sestina {
namespace {

enum class Rule { products, rotation, roots, elements };

Rule rule_of(std::string_view kind) {
  if (kind == "muon" || kind == "normuon" || kind == "adamuon") return Rule::products;
  if (kind == "soap" || kind == "kl-soap" || kind == "basis-rotation") return Rule::rotation;
  if (kind == "shampoo" || kind == "kl-shampoo") return Rule::roots;
  return Rule::elements;
}

constexpr double iterations = 5, refresh_period = 10, longest_side = 10000;

// Per side of length a: products of a^2 b, and of a^3 at a refresh (a QR step, an eigen-problem).
double two_sided(double rows, double cols, double per_product, double per_refresh) {
  const auto side = [&](double a, double b) {
    return a > longest_side ? 0 : per_product * a * a * b + per_refresh * a * a * a / refresh_period;
  };
  return side(rows, cols) + side(cols, rows);
}

constexpr double qr_refresh = 22.0 / 3, eigen_refresh = 11;

double flops(Rule rule, double rows, double cols, bool executed) {
  const double m = std::min(rows, cols), M = std::max(rows, cols);
  switch (rule) {
    case Rule::products:  // A = X X^T and A^2 are symmetric
      return executed ? iterations * (3 * M * m * m + m * m * m) : iterations * (4 * M * m * m + 2 * m * m * m);
    case Rule::rotation:
      return two_sided(rows, cols, executed ? 7 : 8, qr_refresh);
    case Rule::roots:
      return two_sided(rows, cols, executed ? 3 : 4, eigen_refresh);
    case Rule::elements:
      break;
  }
  return rows * cols;
}

}  // namespace

double update_flops(std::string_view kind, std::int64_t rows, std::int64_t cols) {
  return flops(rule_of(kind), static_cast<double>(rows), static_cast<double>(cols), false);
}

double update_seconds(std::string_view kind, std::int64_t rows, std::int64_t cols, const MachineOptions& machine) {
  constexpr double giga = 1e9, tera = 1e12;
  constexpr double passes = 7, bytes = 4;  // reads and writes of weight, gradient and two state arrays, f32
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  const Rule rule = rule_of(kind);
  const double products = rule == Rule::elements ? 0 : flops(rule, r, c, true) / (*machine.peak_tflops * tera);
  return products + passes * bytes * r * c / (*machine.memory_bandwidth * giga);
}

std::int64_t tensor_cost(const TensorSpec& spec, const OptimizerOptions& optimizer, ParallelOptions::Cost cost,
                         const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::elements) return spec.elements();
  constexpr double nano = 1e9;
  std::int64_t sum = 0;
  for (const MatrixPart& part : matrix_parts(spec, optimizer))
    sum += std::llround(cost == ParallelOptions::Cost::flops
                            ? update_flops(optimizer.kind, part.rows, part.cols)
                            : nano * update_seconds(optimizer.kind, part.rows, part.cols, machine));
  return sum;
}

std::size_t StateBytes::of(const TensorSpec& spec) {
  const auto [place, is_new] = known_.try_emplace({spec.rows, spec.cols, spec.heads}, std::size_t{0});
  if (is_new) place->second = optimizer_state_bytes({spec}, optimizer_, sizeof(float));
  return place->second;
}

void require_machine(ParallelOptions::Cost cost, const MachineOptions& machine) {
  if (cost == ParallelOptions::Cost::seconds && !(machine.peak_tflops && machine.memory_bandwidth))
    fail(ExitCode::bad_deck,
         "parallel.cost: \"seconds\" needs machine.peak_tflops and machine.memory_bandwidth, allowed without them "
         "\"flops\", \"elements\"");
}

}  // namespace sestina

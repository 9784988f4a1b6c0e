// The configuration linear program of bin packing (Gilmore and Gomory): minimise the number of bins, each filled by a
// pattern, so that all items are used. Columns are made when their reduced cost asks for them: the most valuable
// pattern at the current prices, a knapsack.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/plan/plan_assign.hpp"

namespace sestina {
namespace {

using Row = std::vector<double>;

// Finds the most valuable pattern within a capacity: depth first by value for its size, cut by the bound that allows a
// part of an item.
class Knapsack {
 public:
  Knapsack(const ItemClasses& items, std::int64_t capacity) : items_(items), capacity_(capacity) {}

  // Returns the best pattern; `upper` is a proven bound on the value of any.
  BinPattern solve(const Row& price, double& upper) {
    order_.clear();
    for (std::size_t j = 0; j < price.size(); ++j)
      if (price[j] > 0) order_.push_back(j);
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return price[a] * static_cast<double>(items_.size[b]) > price[b] * static_cast<double>(items_.size[a]);
    });
    price_ = &price;
    now_.assign(price.size(), 0);
    best_ = now_;
    best_value_ = 0;
    nodes_ = 0;
    upper = relaxed(0, capacity_);
    visit(0, capacity_, 0);
    if (nodes_ <= most_nodes) upper = best_value_;
    return best_;
  }

 private:
  static constexpr int most_nodes = 100'000;

  double relaxed(std::size_t i, std::int64_t room) const {
    double value = 0;
    for (; i < order_.size(); ++i) {
      const std::size_t j = order_[i];
      const std::int64_t size = items_.size[j], whole = std::min<std::int64_t>(items_.count[j], room / size);
      value += static_cast<double>(whole) * (*price_)[j];
      room -= whole * size;
      if (whole < items_.count[j]) return value + (*price_)[j] * static_cast<double>(room) / static_cast<double>(size);
    }
    return value;
  }
  void visit(std::size_t i, std::int64_t room, double value) {
    if (value > best_value_) {
      best_value_ = value;
      best_ = now_;
    }
    constexpr double equal = 1e-12;
    if (i == order_.size() || ++nodes_ > most_nodes || value + relaxed(i, room) <= best_value_ + equal) return;
    const std::size_t j = order_[i];
    const auto most = static_cast<int>(std::min<std::int64_t>(items_.count[j], room / items_.size[j]));
    for (int n = most; n >= 0; --n) {
      now_[j] = n;
      visit(i + 1, room - n * items_.size[j], value + n * (*price_)[j]);
    }
    now_[j] = 0;
  }

  const ItemClasses& items_;
  std::int64_t capacity_;
  std::vector<std::size_t> order_;
  const Row* price_ = nullptr;
  BinPattern now_, best_;
  double best_value_ = 0;
  int nodes_ = 0;
};

// Revised simplex with the inverse of the basis held as a whole: there are as many rows as distinct costs, a handful.
class Simplex {
 public:
  Simplex(const ItemClasses& items, std::int64_t capacity) : k_(items.classes()), inverse_(k_, Row(k_, 0)), used_(k_) {
    for (std::size_t j = 0; j < k_; ++j) {
      const std::int64_t n = std::min<std::int64_t>(items.count[j], capacity / items.size[j]);
      basis_.emplace_back(k_, 0);
      basis_[j][j] = static_cast<int>(n);
      inverse_[j][j] = 1.0 / static_cast<double>(n);
      used_[j] = static_cast<double>(items.count[j]) / static_cast<double>(n);
    }
  }
  Row prices() const {  // every bin costs 1
    Row price(k_, 0);
    for (std::size_t i = 0; i < k_; ++i)
      for (std::size_t j = 0; j < k_; ++j) price[j] += inverse_[i][j];
    return price;
  }
  double bins() const { return std::accumulate(used_.begin(), used_.end(), 0.0); }

  // Returns false when rounding leaves no pattern to give way.
  bool enter(const BinPattern& pattern) {
    Row column(k_, 0);
    for (std::size_t i = 0; i < k_; ++i)
      for (std::size_t j = 0; j < k_; ++j) column[i] += inverse_[i][j] * pattern[j];
    constexpr double small = 1e-10;
    std::size_t out = k_;
    for (std::size_t i = 0; i < k_; ++i)
      if (column[i] > small && (out == k_ || used_[i] * column[out] < used_[out] * column[i])) out = i;
    if (out == k_) return false;
    const double step = std::max(0.0, used_[out] / column[out]);
    for (std::size_t i = 0; i < k_; ++i) used_[i] = i == out ? step : std::max(0.0, used_[i] - step * column[i]);
    for (double& x : inverse_[out]) x /= column[out];
    for (std::size_t i = 0; i < k_; ++i)
      for (std::size_t j = 0; i != out && j < k_; ++j) inverse_[i][j] -= column[i] * inverse_[out][j];
    basis_[out] = pattern;
    return true;
  }
  const std::vector<BinPattern>& basis() const { return basis_; }
  const Row& used() const { return used_; }

 private:
  std::size_t k_;
  std::vector<BinPattern> basis_;
  std::vector<Row> inverse_;
  Row used_;
};

}  // namespace

PatternProgram solve_patterns(const ItemClasses& items, std::int64_t capacity, double enough) {
  constexpr int most_columns = 500;
  constexpr double optimal = 1e-9;
  Simplex simplex(items, capacity);
  Knapsack knapsack(items, capacity);
  PatternProgram result;
  for (int columns = 0; columns < most_columns; ++columns) {
    const Row price = simplex.prices();
    double upper = 0, value = 0, demand = 0;
    const BinPattern pattern = knapsack.solve(price, upper);
    for (std::size_t j = 0; j < items.classes(); ++j) {
      value += price[j] * pattern[j];
      demand += price[j] * items.count[j];
    }
    // Prices over the dearest pattern are feasible in the dual program, whatever the rounding (Farley's bound).
    result.bound = std::max(result.bound, demand / std::max(upper, 1.0));
    if (value <= 1 + optimal || result.bound > enough || !simplex.enter(pattern)) break;
  }
  result.patterns = simplex.basis();
  result.used = simplex.used();
  return result;
}

}  // namespace sestina

#include "app/sweep/sweep_points.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>

namespace sestina {
namespace {

// Returns the end of a key with so many of its words: "schedule.lr" of "optimizer.schedule.lr" with 2.
std::string key_end(const std::string& key, std::size_t words) {
  std::size_t at = key.size();
  for (std::size_t i = 0; i < words && at != key.npos; ++i) at = at == 0 ? key.npos : key.rfind('.', at - 1);
  return at == key.npos ? key : key.substr(at + 1);
}

std::vector<std::string> short_keys(const std::vector<SweepAxis>& grid) {
  std::vector<std::string> names;
  for (const SweepAxis& axis : grid) {
    std::size_t words = 1;
    const auto shared = [&] {
      return std::count_if(grid.begin(), grid.end(), [&](const SweepAxis& other) {
               return key_end(other.key, words) == key_end(axis.key, words);
             }) > 1;
    };
    while (key_end(axis.key, words) != axis.key && shared()) ++words;
    names.push_back(key_end(axis.key, words));
  }
  return names;
}

std::string folder_word(const std::string& toml) {
  std::string word = toml;
  std::erase(word, '"');
  for (char& c : word)
    if (!std::isalnum(static_cast<unsigned char>(c)) && std::string_view("._+-").find(c) == std::string_view::npos)
      c = '-';
  constexpr std::size_t longest = 60;  // of several in one name; file systems allow 255
  return word.substr(0, longest);
}

}  // namespace

std::vector<SweepPoint> grid_points(const std::vector<SweepAxis>& grid) {
  const auto keys = short_keys(grid);
  std::vector<SweepPoint> points = {{}};
  for (std::size_t a = 0; a < grid.size(); ++a) {
    std::vector<SweepPoint> longer;
    for (const SweepPoint& point : points)
      for (const std::string& value : grid[a].values) {
        SweepPoint& next = longer.emplace_back(point);
        next.values.push_back(value);
        next.name += (a == 0 ? "" : "_") + keys[a] + "=" + folder_word(value);
      }
    points = std::move(longer);
  }
  return points;
}

std::optional<double> toml_number(const std::string& toml) {
  double value = 0;
  const auto [end, error] = std::from_chars(toml.data(), toml.data() + toml.size(), value);
  return error == std::errc() && end == toml.data() + toml.size() ? std::optional(value) : std::nullopt;
}

std::vector<std::size_t> order_by_loss(const std::vector<double>& losses) {
  std::vector<std::size_t> order(losses.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto rank = [&](std::size_t i) { return std::isfinite(losses[i]) ? losses[i] : HUGE_VAL; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  return order;
}

std::vector<SweepRung> halving_rungs(std::size_t points, double keep, int rungs, std::int64_t steps) {
  std::vector<SweepRung> all;
  for (std::size_t left = points; rungs == 0 || all.size() < static_cast<std::size_t>(rungs);) {
    all.push_back({left, 0});
    if (left <= 1) break;
    const auto share = static_cast<std::size_t>(std::ceil(keep * static_cast<double>(left)));
    left = std::clamp<std::size_t>(share, 1, left - 1);
  }
  for (std::size_t r = all.size(); r-- > 0; steps /= 2) all[r].steps = steps;
  return all;
}

std::vector<SweepEdge> edges_of(const std::vector<SweepAxis>& grid, const SweepPoint& best) {
  std::vector<SweepEdge> edges;
  for (std::size_t a = 0; a < grid.size(); ++a) {
    std::vector<double> numbers;
    for (const std::string& value : grid[a].values)
      if (const auto number = toml_number(value)) numbers.push_back(*number);
    const auto mine = toml_number(best.values[a]);
    if (!mine || numbers.size() < 2 || numbers.size() < grid[a].values.size()) continue;
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    if (*mine == *low || *mine == *high) edges.push_back({grid[a].key, best.values[a], *mine == *high});
  }
  return edges;
}

}  // namespace sestina

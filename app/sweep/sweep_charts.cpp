// Charts of the loss against the keys of a sweep, as SVG in the style of the report's page (io/report/page/report.css).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "app/sweep/sweep_results.hpp"
#include "io/report/page.hpp"

namespace sestina {
namespace {

constexpr double width = 620, height = 300, left = 60, right = 600, top = 16, bottom = 250;

// The values of a key along the chart: numbers at their places, logarithmic where they are spread, others side by side.
struct KeyAxis {
  std::vector<double> at;  // 0 to 1, by value
};

KeyAxis key_axis(const SweepAxis& axis) {
  constexpr double wide = 9.9;  // largest over smallest value, from which places are logarithmic
  std::vector<double> numbers;
  for (const std::string& value : axis.values)
    if (const auto number = toml_number(value)) numbers.push_back(*number);
  if (numbers.size() < axis.values.size()) {
    numbers.clear();
    for (std::size_t v = 0; v < axis.values.size(); ++v) numbers.push_back(static_cast<double>(v));
  } else if (const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
             *low > 0 && *high / *low > wide) {
    for (double& number : numbers) number = std::log(number);
  }
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const double first = *low, range = *high > *low ? *high - *low : 1;
  KeyAxis placed;
  for (const double number : numbers) placed.at.push_back((number - first) / range);
  return placed;
}

struct LossRange {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  double y(double loss) const { return bottom - (loss - low) / (high - low) * (bottom - top); }
};

LossRange loss_range(const SweepSummary& summary) {
  LossRange range;
  for (const PointResult& result : summary.ranked) {
    if (!std::isfinite(result.loss.mean)) continue;
    const double spread = result.loss.spread.value_or(0);
    range.low = std::min(range.low, result.loss.mean - spread);
    range.high = std::max(range.high, result.loss.mean + spread);
  }
  if (!(range.low < range.high)) range.low -= 0.5, range.high = range.low + 1;
  const double margin = 0.05 * (range.high - range.low);
  range.low -= margin, range.high += margin;
  return range;
}

void draw_frame(std::string& svg, const SweepAxis& axis, const KeyAxis& place, const LossRange& range) {
  constexpr int lines = 4;
  for (int i = 0; i <= lines; ++i) {
    const double loss = range.low + (range.high - range.low) * i / lines, y = range.y(loss);
    fmt::format_to(std::back_inserter(svg),
                   "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"end\" "
                   "x=\"{}\" y=\"{:.1f}\">{:.4g}</text>\n",
                   left, right, y, y, left - 6, y + 4, loss);
  }
  fmt::format_to(std::back_inserter(svg), "<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", left,
                 right, bottom, bottom);
  for (std::size_t v = 0; v < axis.values.size(); ++v)
    fmt::format_to(std::back_inserter(svg), "<text class=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                   left + 20 + place.at[v] * (right - left - 40), bottom + 18, escape_html(axis.values[v]));
  fmt::format_to(std::back_inserter(svg), "<text class=\"middle\" x=\"{}\" y=\"{}\">{}</text>\n", (left + right) / 2,
                 bottom + 38, escape_html(axis.key));
}

// Draws a dot with its spread for each point, and a line through the best of each value.
void draw_points(std::string& svg, const Sweep& sweep, const SweepSummary& summary, std::size_t axis,
                 const KeyAxis& place, const LossRange& range) {
  const auto& values = sweep.options.grid[axis].values;
  std::vector<std::pair<double, double>> best;  // place along the chart, loss
  for (std::size_t v = 0; v < values.size(); ++v) {
    const double x = left + 20 + place.at[v] * (right - left - 40);
    double lowest = std::numeric_limits<double>::infinity();
    for (const PointResult& result : summary.ranked) {
      const SweepPoint& point = sweep.points[result.point];
      if (point.values[axis] != values[v] || !std::isfinite(result.loss.mean)) continue;
      const double loss = result.loss.mean, spread = result.loss.spread.value_or(0);
      lowest = std::min(lowest, loss);
      fmt::format_to(std::back_inserter(svg),
                     "<line class=\"faint\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><circle "
                     "class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}: {:.5g}</title></circle>\n",
                     x, x, range.y(loss - spread), range.y(loss + spread), x, range.y(loss), escape_html(point.name),
                     loss);
    }
    if (std::isfinite(lowest)) best.emplace_back(x, range.y(lowest));
  }
  std::sort(best.begin(), best.end());
  std::string path;
  for (const auto& [x, y] : best) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
  if (!path.empty()) svg += fmt::format("<path class=\"curve\" d=\"{}\"/>\n", path);
}

}  // namespace

std::string sweep_charts(const Sweep& sweep, const SweepSummary& summary) {
  const LossRange range = loss_range(summary);
  std::string html = "<section aria-label=\"Sweep\">\n<div class=\"cards\">\n";
  for (std::size_t a = 0; a < sweep.options.grid.size(); ++a) {
    const SweepAxis& axis = sweep.options.grid[a];
    if (axis.values.size() < 2) continue;
    const KeyAxis place = key_axis(axis);
    std::string svg =
        fmt::format("<svg class=\"chart c0\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"loss against {}\">\n",
                    width, height, escape_html(axis.key));
    draw_frame(svg, axis, place, range);
    draw_points(svg, sweep, summary, a, place, range);
    html +=
        fmt::format("<div class=\"card\"><div class=\"card-head\"><h3>{} loss against {}</h3></div>\n{}</svg></div>\n",
                    sweep.validation ? "validation" : "training", escape_html(axis.key), svg);
  }
  html += "</div>\n";
  for (const SweepEdge& edge : summary.edges)
    html += fmt::format("<p class=\"hint\">{}.</p>\n", escape_html(edge_text(edge)));
  return html + fmt::format("<pre tabindex=\"0\">{}</pre>\n</section>\n", escape_html(sweep_table(sweep, summary)));
}

}  // namespace sestina

// Line and area plots as inline SVG. Colours come from the page's style sheet (classes c0 to c7, var(--c0) ...). No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

enum class Unit { plain, count, seconds, bytes };  // count: whole numbers

struct Series {
  enum class Style { line, faint, points, area };  // area: from `base` up to y
  Style style = Style::line;
  int color = 0;                                   // modulo 8
  std::vector<double> x, y, base;                  // y may hold NaN: a gap
};

struct Plot {
  std::string x_label, y_label;
  Unit x_unit = Unit::plain, y_unit = Unit::plain;
  bool from_zero = false;       // the y axis begins at 0
  bool spikes_cut = false;      // the y axis leaves out what lies far above almost all points
  std::vector<Series> series;
};

struct Range {
  double low, high;
};

// 1, 2 or 5 times a power of ten (seconds: also 10, 15 and 30, bytes: powers of two, each of the unit the labels have),
// about `wanted` of them inside.
std::vector<double> nice_ticks(Range range, int wanted, Unit unit);
// The ticks' labels: one factor for all ("1.5k", "30 min", "2 GiB", "3e-4"), as many digits as they need.
std::vector<std::string> tick_labels(const std::vector<double>& ticks, Unit unit);
std::string escape_html(std::string_view text);
std::string plot_definitions();  // once per page, before the first plot
std::string draw(const Plot& plot);

}  // namespace sestina

#include "io/report_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace sestina {
namespace {

constexpr double kWidth = 640, kHeight = 260;
constexpr double kLeft = 82, kRight = 14, kTop = 10, kBottom = 40;

bool finite(double x, double y) { return std::isfinite(x) && std::isfinite(y); }

// What x and y span, over finite points only.
Range span(const Plot& plot, bool of_x) {
  Range range{HUGE_VAL, -HUGE_VAL};
  for (const Series& s : plot.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      if (!finite(s.x[i], s.y[i])) continue;
      const double value = of_x ? s.x[i] : s.y[i];
      range = {std::min(range.low, value), std::max(range.high, value)};
    }
  }
  return range;
}

// Where few points lie far above all others (the first losses, spikes), the axis ends a little above the others.
double without_spikes(const Plot& plot, Range range) {
  std::vector<double> values;
  for (const Series& s : plot.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      if (finite(s.x[i], s.y[i])) values.push_back(s.y[i]);
    }
  }
  if (values.size() < 20) return range.high;
  const double low = plot.from_zero ? 0 : range.low;
  const auto rank = values.begin() + static_cast<std::ptrdiff_t>((plot.from_zero ? 0.98 : 0.95) * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), rank, values.end());
  const double cut = low + (plot.from_zero ? 1.5 : 4) * (*rank - low);
  return cut > low && range.high > 1.5 * (cut - low) + low ? cut : range.high;
}

Range padded(Range range, bool from_zero) {
  if (from_zero) range.low = std::min(0.0, range.low);
  if (range.high <= range.low) {  // one value: some room around it
    const double room = range.low == 0 ? 1 : 0.5 * std::abs(range.low);
    return {from_zero ? std::min(0.0, range.low) : range.low - room, range.high + room};
  }
  const double room = 0.04 * (range.high - range.low);
  return {from_zero && range.low == 0 ? 0 : range.low - room, range.high + room};
}

struct Frame {
  Range x, y;
  double at_x(double value) const { return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight); }
  double at_y(double value) const { return kHeight - kBottom - (value - y.low) / (y.high - y.low) * (kHeight - kTop - kBottom); }
};

// Calls part(first, last) for the stretches of points that are all finite.
template <class Part>
void for_each_stretch(const Series& s, Part part) {
  for (std::size_t i = 0; i < s.x.size();) {
    if (!finite(s.x[i], s.y[i])) {
      ++i;
      continue;
    }
    const std::size_t first = i;
    while (i < s.x.size() && finite(s.x[i], s.y[i])) ++i;
    part(first, i);
  }
}

using Out = std::back_insert_iterator<std::string>;

void draw_points(Out out, const Series& s, const Frame& f) {
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    if (!finite(s.x[i], s.y[i])) continue;
    fmt::format_to(out, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\" class=\"dot c{}\"/>", f.at_x(s.x[i]), f.at_y(s.y[i]), s.color % 8);
  }
}

void draw_line(Out out, const Series& s, const Frame& f) {
  std::string path, lonely;
  for_each_stretch(s, [&](std::size_t first, std::size_t last) {
    if (last - first == 1) {  // a line of one point would not show
      fmt::format_to(std::back_inserter(lonely), "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"dot c{}\"/>", f.at_x(s.x[first]),
                     f.at_y(s.y[first]), s.color % 8);
      return;
    }
    for (std::size_t i = first; i < last; ++i) {
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", i == first ? 'M' : 'L', f.at_x(s.x[i]), f.at_y(s.y[i]));
    }
  });
  const char* style = s.style == Series::Style::faint ? "faint" : "line";
  if (!path.empty()) fmt::format_to(out, "<path d=\"{}\" class=\"{} c{}\"/>", path, style, s.color % 8);
  fmt::format_to(out, "{}", lonely);
}

void draw_area(Out out, const Series& s, const Frame& f) {
  for_each_stretch(s, [&](std::size_t first, std::size_t last) {
    std::string path;
    const double room = last - first == 1 ? 6 : 0;  // one point: a bar
    for (std::size_t i = first; i < last; ++i) {
      if (room > 0) fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}", f.at_x(s.x[i]) - room, f.at_y(s.y[i]));
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', f.at_x(s.x[i]) + room, f.at_y(s.y[i]));
    }
    for (std::size_t i = last; i-- > first;) {
      fmt::format_to(std::back_inserter(path), "L{:.1f} {:.1f}", f.at_x(s.x[i]) + room, f.at_y(s.base[i]));
      if (room > 0) fmt::format_to(std::back_inserter(path), "L{:.1f} {:.1f}", f.at_x(s.x[i]) - room, f.at_y(s.base[i]));
    }
    fmt::format_to(out, "<path d=\"{}Z\" class=\"area c{}\"/>", path, s.color % 8);
  });
}

void draw_axes(Out out, const Plot& plot, const Frame& f) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  const auto y_ticks = nice_ticks(f.y, 5, plot.y_unit);
  const auto y_labels = tick_labels(y_ticks, plot.y_unit);
  for (std::size_t i = 0; i < y_ticks.size(); ++i) {
    const double y = f.at_y(y_ticks[i]);
    fmt::format_to(out, "<path d=\"M{} {:.1f}H{}\" class=\"grid\"/><text x=\"{}\" y=\"{:.1f}\" class=\"tick end\">{}</text>", kLeft, y,
                   right, kLeft - 6, y + 4, y_labels[i]);
  }
  const auto x_ticks = nice_ticks(f.x, 7, plot.x_unit);
  const auto x_labels = tick_labels(x_ticks, plot.x_unit);
  for (std::size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = f.at_x(x_ticks[i]);
    fmt::format_to(out, "<path d=\"M{:.1f} {}v4\" class=\"axis\"/><text x=\"{:.1f}\" y=\"{}\" class=\"tick middle\">{}</text>", x, bottom,
                   x, bottom + 16, x_labels[i]);
  }
  fmt::format_to(out, "<path d=\"M{} {}V{}H{}\" class=\"axis\"/>", kLeft, kTop, bottom, right);
  fmt::format_to(out, "<text x=\"{}\" y=\"{}\" class=\"label middle\">{}</text>", (kLeft + right) / 2, kHeight - 6, escape_html(plot.x_label));
  fmt::format_to(out, "<text transform=\"translate(14 {}) rotate(-90)\" class=\"label middle\">{}</text>", (kTop + bottom) / 2,
                 escape_html(plot.y_label));
}

// Value of one in the unit that a number of this size is written in.
struct Scale {
  double factor;
  std::string suffix;
};

Scale scale_of(double largest, Unit unit) {
  if (unit == Unit::seconds) {
    if (largest >= 2 * 86400) return {86400, " d"};
    if (largest >= 2 * 3600) return {3600, " h"};
    if (largest >= 120) return {60, " min"};
    if (largest >= 1 || largest == 0) return {1, " s"};
    return largest >= 1e-3 ? Scale{1e-3, " ms"} : Scale{1e-6, " µs"};
  }
  if (unit == Unit::bytes) {
    static constexpr const char* kNames[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    int power = 0;
    while (power < 4 && largest >= std::ldexp(1.0, 10 * (power + 1))) ++power;
    return {std::ldexp(1.0, 10 * power), kNames[power]};
  }
  if (largest >= 1e15) return {std::pow(10, std::floor(std::log10(largest))), fmt::format("e{:.0f}", std::floor(std::log10(largest)))};
  if (largest >= 1e12) return {1e12, "T"};
  if (largest >= 1e9) return {1e9, "G"};
  if (largest >= 1e6) return {1e6, "M"};
  if (largest >= 1e4) return {1e3, "k"};
  if (largest >= 1e-2 || largest == 0) return {1, ""};
  const double power = std::floor(std::log10(largest) + 1e-9);
  return {std::pow(10, power), fmt::format("e{:.0f}", power)};
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> nice_ticks(Range range, int wanted, Unit unit) {
  const Scale scale = scale_of(std::max(std::abs(range.low), std::abs(range.high)), unit);
  const double raw = (range.high - range.low) / scale.factor / wanted;
  if (!(raw > 0) || !std::isfinite(raw)) return {range.low};
  double step = 0;
  if (unit == Unit::bytes && raw >= 1) {
    step = std::exp2(std::ceil(std::log2(raw)));
  } else if (unit == Unit::seconds && raw > 5 && scale.factor < 3600 && scale.factor >= 1) {
    step = raw <= 10 ? 10 : raw <= 15 ? 15 : 30;
  } else {
    const double power = std::pow(10, std::floor(std::log10(raw)));
    const double digit = raw / power;
    step = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  }
  step *= scale.factor;
  if (unit == Unit::count) step = std::max(1.0, step);
  std::vector<double> ticks;
  const double first = std::ceil(range.low / step - 1e-9), last = std::floor(range.high / step + 1e-9);
  for (double i = first; i <= last && ticks.size() < 50; ++i) ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks, Unit unit) {
  double largest = 0;
  for (double tick : ticks) largest = std::max(largest, std::abs(tick));
  const Scale scale = scale_of(largest, unit);
  int digits = 0;  // the fewest that tell every tick exactly
  for (; digits < 6; ++digits) {
    const double grid = std::pow(10, digits);
    if (std::all_of(ticks.begin(), ticks.end(), [&](double tick) {
          const double value = tick / scale.factor * grid;
          return std::abs(value - std::round(value)) < 1e-6 * std::max(1.0, std::abs(value));
        })) {
      break;
    }
  }
  std::vector<std::string> labels;
  for (double tick : ticks) labels.push_back(tick == 0 ? "0" : fmt::format("{:.{}f}{}", tick / scale.factor, digits, scale.suffix));
  return labels;
}

std::string plot_definitions() {
  return fmt::format("<svg width=\"0\" height=\"0\" class=\"definitions\"><clipPath id=\"plot-area\"><rect x=\"{}\" y=\"{}\" "
                     "width=\"{}\" height=\"{}\"/></clipPath></svg>",
                     kLeft, kTop - 4, kWidth - kLeft - kRight + 4, kHeight - kTop - kBottom + 4);
}

std::string draw(const Plot& plot) {
  std::string svg;
  const Out out = std::back_inserter(svg);
  fmt::format_to(out, "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} by {}\">", kWidth, kHeight, escape_html(plot.y_label),
                 escape_html(plot.x_label));
  Frame frame{span(plot, true), span(plot, false)};
  if (frame.x.low > frame.x.high) {
    fmt::format_to(out, "<text x=\"{}\" y=\"{}\" class=\"label middle\">no data</text></svg>", kWidth / 2, kHeight / 2);
    return svg;
  }
  if (plot.spikes_cut) frame.y.high = without_spikes(plot, frame.y);
  frame.y = padded(frame.y, plot.from_zero);
  if (frame.x.low == frame.x.high) frame.x = plot.x_unit == Unit::count ? Range{frame.x.low - 1, frame.x.low + 1} : padded(frame.x, false);
  draw_axes(out, plot, frame);
  svg += "<g clip-path=\"url(#plot-area)\">";
  for (const Series& s : plot.series) {
    if (s.style == Series::Style::points) {
      draw_points(out, s, frame);
    } else if (s.style == Series::Style::area) {
      draw_area(out, s, frame);
    } else {
      draw_line(out, s, frame);
    }
  }
  svg += "</g></svg>";
  return svg;
}

}  // namespace sestina

#include "io/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "io/report_plot.hpp"
#include "io/report_series.hpp"
#include "io/report_style.hpp"

namespace sestina {
namespace {

constexpr std::size_t kMostPoints = 700;  // of one curve: about one per screen pixel
constexpr std::size_t kMostAreas = 300;

using Out = std::back_insert_iterator<std::string>;
using Runs = std::vector<RunHistory>;
using Value = std::function<double(const TrainLine&)>;

struct Axis {
  Abscissa kind;
  const char* name;
  const char* label;
  Unit unit;
};
constexpr Axis kAxes[] = {{Abscissa::step, "step", "step", Unit::count},
                          {Abscissa::tokens, "tokens", "tokens", Unit::count},
                          {Abscissa::time, "time", "training time", Unit::seconds}};

std::vector<double> values(const RunHistory& run, const Value& value) {
  std::vector<double> result;
  for (const TrainLine& line : run.train) result.push_back(value(line));
  return result;
}

std::size_t smoothing_reach(const RunHistory& run) { return run.train.size() / 150; }

Series curve(std::vector<double> x, std::vector<double> y, int color, Series::Style style) {
  thin_out(x, y, kMostPoints);
  return {style, color, std::move(x), std::move(y), {}};
}

struct LegendEntry {
  int color;
  const char* mark;  // class of the sample: line, dot or area
  std::string text;
};

// One figure: the same plot by step, tokens and time, of which the page shows the chosen one.
void figure(Out out, const std::string& title, const std::string& note, const std::vector<LegendEntry>& legend,
            const std::function<Plot(const Axis&)>& plot) {
  fmt::format_to(out, "<figure><figcaption><b>{}</b>", escape_html(title));
  if (!note.empty()) fmt::format_to(out, " <small>{}</small>", escape_html(note));
  fmt::format_to(out, "</figcaption><div class=\"legend\">");
  for (const LegendEntry& entry : legend) {
    fmt::format_to(out, "<span><i class=\"{} c{}\"></i>{}</span>", entry.mark, entry.color % 8, escape_html(entry.text));
  }
  fmt::format_to(out, "</div>");
  for (const Axis& axis : kAxes) fmt::format_to(out, "<div class=\"by-{}\">{}</div>", axis.name, draw(plot(axis)));
  fmt::format_to(out, "</figure>\n");
}

std::vector<LegendEntry> run_legend(const Runs& runs) {
  std::vector<LegendEntry> legend;
  if (runs.size() < 2) return legend;
  for (std::size_t r = 0; r < runs.size(); ++r) legend.push_back({static_cast<int>(r), "line", runs[r].name});
  return legend;
}

void loss_figure(Out out, const Runs& runs) {
  std::vector<LegendEntry> legend;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::string prefix = runs.size() > 1 ? runs[r].name + ", " : "";
    legend.push_back({static_cast<int>(r), "line", prefix + "training"});
    if (!runs[r].validation.empty()) legend.push_back({static_cast<int>(r), "dot", prefix + "validation"});
  }
  figure(out, "Loss", "nats per token; thick: mean over neighbouring steps", legend, [&](const Axis& axis) {
    Plot plot{axis.label, "loss", axis.unit, Unit::plain, false, true, {}};
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const auto loss = values(runs[r], [](const TrainLine& line) { return line.loss; });
      const auto x = abscissa(runs[r], axis.kind);
      plot.series.push_back(curve(x, loss, static_cast<int>(r), Series::Style::faint));
    }
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const auto loss = values(runs[r], [](const TrainLine& line) { return line.loss; });
      const auto x = abscissa(runs[r], axis.kind);
      plot.series.push_back(curve(x, smoothed(loss, smoothing_reach(runs[r])), static_cast<int>(r), Series::Style::line));
    }
    for (std::size_t r = 0; r < runs.size(); ++r) {
      std::vector<double> loss;
      for (const auto& v : runs[r].validation) loss.push_back(v.loss);
      plot.series.push_back(curve(validation_abscissa(runs[r], axis.kind), loss, static_cast<int>(r), Series::Style::points));
    }
    return plot;
  });
}

struct Curve {
  const char* title;
  const char* note;
  const char* label;
  Unit unit;
  bool from_zero, spikes_cut, raw_too;
  Value value;
};

void curve_figure(Out out, const Runs& runs, const Curve& c) {
  figure(out, c.title, c.note, run_legend(runs), [&](const Axis& axis) {
    Plot plot{axis.label, c.label, axis.unit, c.unit, c.from_zero, c.spikes_cut, {}};
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const auto x = abscissa(runs[r], axis.kind);
      const auto y = values(runs[r], c.value);
      if (c.raw_too) plot.series.push_back(curve(x, y, static_cast<int>(r), Series::Style::faint));
      plot.series.push_back(curve(x, c.raw_too ? smoothed(y, smoothing_reach(runs[r])) : y, static_cast<int>(r), Series::Style::line));
    }
    return plot;
  });
}

void split_figure(Out out, const RunHistory& run, const std::string& title) {
  std::vector<LegendEntry> legend;
  for (std::size_t p = 0; p < StepSplit::kParts; ++p) legend.push_back({static_cast<int>(p), "area", StepSplit::kNames[p]});
  const StepSplit split = step_split(run);
  figure(out, title, "seconds of a step", legend, [&](const Axis& axis) {
    Plot plot{axis.label, "time per step", axis.unit, Unit::seconds, true, true, {}};
    std::vector<double> base;
    for (std::size_t p = 0; p < StepSplit::kParts; ++p) {
      auto x = abscissa(run, axis.kind);
      auto y = split.part[p];
      thin_out(x, y, kMostAreas);
      if (base.empty()) base.assign(y.size(), 0);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += base[i];
      plot.series.push_back({Series::Style::area, static_cast<int>(p), x, y, base});
      base = y;
    }
    return plot;
  });
}

std::string number(std::optional<double> value, int digits) { return value ? fmt::format("{:.{}f}", *value, digits) : "–"; }
std::string scaled(double value, Unit unit) {
  const auto label = tick_labels({value}, unit)[0];
  // Three or four digits are enough in a table: the factor and suffix as for ticks.
  const std::size_t digits = label.find_first_not_of("-0123456789.");
  const std::string suffix = digits == std::string::npos ? "" : label.substr(digits);
  const double shown = std::stod(label);
  return fmt::format("{:.{}f}{}", shown, std::abs(shown) >= 100 || shown == std::round(shown) ? 0 : std::abs(shown) >= 10 ? 1 : 2, suffix);
}

void summary_table(Out out, const Runs& runs) {
  fmt::format_to(out, "<div class=\"wide\"><table><thead><tr><th>run</th><th>steps</th><th>tokens</th><th>training loss</th>"
                      "<th>validation loss</th><th>best</th><th>bits per byte</th><th>tokens/s</th><th>TFLOP/s</th><th>MFU</th>"
                      "<th>peak memory</th><th>time</th><th>skipped</th></tr></thead><tbody>\n");
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Summary s = summarize(runs[r]);
    const std::string speed = s.tokens_per_s ? scaled(*s.tokens_per_s, Unit::plain) : "–";
    const std::string mfu = s.mfu ? fmt::format("{:.1f} %", 100 * *s.mfu) : "–";
    fmt::format_to(out, "<tr><th><i class=\"line c{}\"></i>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>", r % 8,
                   escape_html(runs[r].name), s.steps, scaled(static_cast<double>(s.tokens), Unit::count), number(s.loss, 4),
                   number(s.validation_loss, 4), number(s.best_validation_loss, 4), number(s.bits_per_byte, 4));
    fmt::format_to(out, "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", speed, number(s.tflops, 3), mfu,
                   scaled(static_cast<double>(s.memory_peak_bytes), Unit::bytes), scaled(s.seconds, Unit::seconds), s.skipped);
  }
  fmt::format_to(out, "</tbody></table></div><p class=\"hint\">Training loss: mean of the last ten values. Speeds: medians. Time: sum of the "
                      "steps, without start, evaluation and waiting for checkpoints.</p>\n");
}

void notes(Out out, const RunHistory& run) {
  if (run.bad_lines > 0) {
    fmt::format_to(out, "<p class=\"hint\">{}: {} lines of metrics.jsonl could not be read and are left out.</p>\n", escape_html(run.name),
                   run.bad_lines);
  }
  if (run.notes.empty()) return;
  fmt::format_to(out, "<details{}><summary>{}: {} checkpoints and events</summary><div class=\"wide\"><table class=\"notes\"><thead><tr>"
                      "<th>step</th><th>kind</th><th></th></tr></thead><tbody>\n",
                 run.notes.size() <= 12 ? " open" : "", escape_html(run.name), run.notes.size());
  for (const auto& note : run.notes) {
    fmt::format_to(out, "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", note.step, escape_html(note.kind), escape_html(note.text));
  }
  fmt::format_to(out, "</tbody></table></div></details>\n");
}

void figures(Out out, const Runs& runs) {
  loss_figure(out, runs);
  curve_figure(out, runs, {"Learning rate", "", "learning rate", Unit::plain, true, false, false, [](const TrainLine& l) { return l.lr; }});
  curve_figure(out, runs, {"Gradient norm", "before clipping", "gradient norm", Unit::plain, true, true, true,
                           [](const TrainLine& l) { return l.grad_norm; }});
  curve_figure(out, runs, {"Speed", "", "tokens per second", Unit::plain, true, true, true, [](const TrainLine& l) { return l.tokens_per_s; }});
  for (const RunHistory& run : runs) split_figure(out, run, runs.size() > 1 ? "Step time: " + run.name : "Step time");
  curve_figure(out, runs, {"Memory", "peak of the process so far", "memory", Unit::bytes, true, false, false, [](const TrainLine& l) {
                             return l.memory_peak_bytes > 0 ? static_cast<double>(l.memory_peak_bytes) : std::nan("");
                           }});
}

}  // namespace

std::string report_html(const std::vector<RunHistory>& runs, const std::vector<std::string>& resolved_decks) {
  std::string html;
  const Out out = std::back_inserter(html);
  std::string title = "Sestina report";
  for (std::size_t r = 0; r < runs.size(); ++r) title += (r == 0 ? ": " : ", ") + runs[r].name;
  fmt::format_to(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                      "content=\"width=device-width, initial-scale=1\"><title>{}</title>\n<style>{}</style></head><body>\n",
                 escape_html(title), kReportStyle);
  html += plot_definitions();
  fmt::format_to(out, "<h1>{}</h1>\n", escape_html(title));
  summary_table(out, runs);
  html += "<input type=\"radio\" name=\"axis\" id=\"axis-step\" checked><input type=\"radio\" name=\"axis\" id=\"axis-tokens\">"
          "<input type=\"radio\" name=\"axis\" id=\"axis-time\"><nav>against <label for=\"axis-step\">steps</label>"
          "<label for=\"axis-tokens\">tokens</label><label for=\"axis-time\">time</label></nav>\n<main>\n";
  figures(out, runs);
  html += "</main>\n";
  for (const RunHistory& run : runs) notes(out, run);
  for (std::size_t r = 0; r < resolved_decks.size() && r < runs.size(); ++r) {
    if (resolved_decks[r].empty()) continue;
    fmt::format_to(out, "<details><summary>{}: resolved deck</summary><pre>{}</pre></details>\n", escape_html(runs[r].name),
                   escape_html(resolved_decks[r]));
  }
  html += "</body></html>\n";
  return html;
}

}  // namespace sestina

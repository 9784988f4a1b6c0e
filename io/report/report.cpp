#include "io/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "io/report/history.hpp"
#include "io/report/page.hpp"
#include "kernels/base/error.hpp"
#include "report_page.hpp"  // made of the files in page/

namespace sestina {

namespace {

// Replaces the marks "@{name}" of the template by parts; marks inside a part are left as they are.
std::string filled(std::string_view page, const std::map<std::string_view, std::string_view>& parts) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t mark = page.find("@{", at);
    out += page.substr(at, mark - at);
    if (mark == page.npos) return out;
    const std::size_t end = page.find('}', mark);
    const auto part = parts.find(page.substr(mark + 2, end - mark - 2));
    SESTINA_REQUIRE(part != parts.end(), "{}", page.substr(mark, end - mark + 1));
    out += part->second;
    at = end + 1;
  }
}

}  // namespace

std::string report_html(const std::vector<ReportRun>& runs, const ReportOptions& options) {
  std::string title = fmt::format("Sestina: {} runs", runs.size());
  if (runs.size() <= 3) {
    title = "Sestina";
    for (std::size_t r = 0; r < runs.size(); ++r) title += (r == 0 ? ": " : ", ") + runs[r].label;
  }
  const std::string shown_title = escape_html(title), made = escape_html(options.made);
  // Without a script the browser itself loads the page again.
  const std::string reload = options.reload > 0
                                 ? fmt::format("<noscript><meta http-equiv=\"refresh\" content=\"{:.0f}\"></noscript>",
                                               std::max(1.0, options.reload))
                                 : "";
  const std::string summary = summary_table(runs), facts = facts_table(runs), records = record_tables(runs),
                    data = page_data(runs, options);
  return filled(page::report_html, {{"title", shown_title},
                                    {"reload", reload},
                                    {"style", page::report_css},
                                    {"made", made},
                                    {"before", options.before},
                                    {"summary", summary},
                                    {"facts", facts},
                                    {"records", records},
                                    {"data", data},
                                    {"numbers.js", page::numbers_js},
                                    {"chart.js", page::chart_js},
                                    {"panels.js", page::panels_js},
                                    {"report.js", page::report_js}});
}

namespace {

std::string quoted(const std::string& text) {  // RFC 4180
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

void number(std::string& out, double value) {
  out += ',';
  if (std::isfinite(value)) fmt::format_to(std::back_inserter(out), "{}", value);
}

// Writes the rows of one run: a validation stands in the row of its step, or in a row of its own (before the first
// update).
void add_rows(std::string& out, const ReportRun& run, const std::vector<std::string>& columns) {
  const RunHistory& history = run.history;
  const auto all = all_series(history);
  std::vector<const std::vector<double>*> values;
  for (const std::string& name : columns) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const NamedSeries& s) { return s.name == name; });
    values.push_back(found == all.end() ? nullptr : &found->values);
  }
  const auto seconds = abscissa(history, Abscissa::time);
  const std::string label = quoted(run.label);
  auto check = history.validation.begin();
  const auto checked = [&] {
    number(out, check->loss);
    number(out, check->bits_per_byte.value_or(std::nan("")));
    ++check;
    out += '\n';
  };
  const auto alone = [&] {
    fmt::format_to(std::back_inserter(out), "{},{}{}", label, check->step, std::string(2 + columns.size(), ','));
    checked();
  };
  for (std::size_t i = 0; i < history.train.size(); ++i) {
    const TrainLine& line = history.train[i];
    while (check != history.validation.end() && check->step < line.step) alone();
    fmt::format_to(std::back_inserter(out), "{},{},{}", label, line.step, line.tokens);
    number(out, seconds[i]);
    for (const auto* column : values) number(out, column == nullptr ? std::nan("") : (*column)[i]);
    if (check != history.validation.end() && check->step == line.step)
      checked();
    else
      out += ",,\n";
  }
  while (check != history.validation.end()) alone();
}

}  // namespace

std::string report_csv(const std::vector<ReportRun>& runs) {
  std::vector<std::string> columns;
  for (const ReportRun& run : runs)
    for (const NamedSeries& series : all_series(run.history))
      if (std::find(columns.begin(), columns.end(), series.name) == columns.end()) columns.push_back(series.name);
  std::string out = "run,step,tokens,seconds";
  for (const std::string& column : columns) out += "," + quoted(column);
  out += ",validation_loss,bits_per_byte\n";
  for (const ReportRun& run : runs) add_rows(out, run, columns);
  return out;
}

}  // namespace sestina

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "io/report/report.hpp"
#include "io/report/series.hpp"

namespace sestina {
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

// The rows of one run: a validation stands in the row of its step, or in one of its own (before the first update).
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

#include "io/report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "io/report/history.hpp"

namespace sestina {
namespace {

constexpr std::size_t most_points = 2000;          // points of a series: more than a screen has columns, for zooming
constexpr std::size_t most_tensor_values = 60000;  // values of a run: all quantities, tensors and steps

// Writes JSON; commas come by themselves.
class PageJson {
 public:
  std::string text;
  void open(char bracket) { separate(), text += bracket, first_ = true; }
  void close(char bracket) { text += bracket, first_ = false; }
  void key(std::string_view name) {
    separate();
    text += json_string(name) + ":";
    first_ = true;
  }
  void value(double number, int digits = 6) {
    separate();
    if (std::isfinite(number))
      fmt::format_to(std::back_inserter(text), "{:.{}g}", number, digits);
    else
      text += "null";
  }
  void value(std::string_view string) { separate(), text += json_string(string); }
  void value(bool flag) { separate(), text += flag ? "true" : "false"; }
  void values(const std::vector<double>& numbers, int digits = 6) {
    open('[');
    for (const double number : numbers) value(number, digits);
    close(']');
  }

 private:
  void separate() {
    if (!first_) text += ',';
    first_ = false;
  }
  bool first_ = true;
};

constexpr struct {
  const char* name;
  Abscissa kind;
} axes[] = {{"step", Abscissa::step}, {"tokens", Abscissa::tokens}, {"time", Abscissa::time}};
constexpr int exact = 15;  // steps and tokens are counts

bool has_range(std::string_view series) { return series == "loss" || series == "grad_norm" || series == "step_s"; }

void series(PageJson& json, const RunHistory& run) {
  const std::size_t group = group_size(run.train.size(), most_points);
  json.key("x"), json.open('{');
  for (const auto& axis : axes)
    json.key(axis.name), json.values(thinned(abscissa(run, axis.kind), group, Thinning::last), exact);
  json.close('}');
  const auto all = all_series(run);
  json.key("series"), json.open('{');
  for (const NamedSeries& s : all) json.key(s.name), json.values(thinned(s.values, group, Thinning::mean));
  json.close('}');
  if (group == 1) return;
  for (const auto& [name, how] : {std::pair("low", Thinning::least), std::pair("high", Thinning::most)}) {
    json.key(name), json.open('{');
    for (const NamedSeries& s : all)
      if (has_range(s.name)) json.key(s.name), json.values(thinned(s.values, group, how));
    json.close('}');
  }
}

void validation(PageJson& json, const RunHistory& run) {
  std::vector<double> loss, bits;
  for (const auto& v : run.validation) loss.push_back(v.loss), bits.push_back(v.bits_per_byte.value_or(std::nan("")));
  const std::size_t group = group_size(loss.size(), most_points);
  json.key("validation"), json.open('{');
  for (const auto& axis : axes)
    json.key(axis.name), json.values(thinned(validation_abscissa(run, axis.kind), group, Thinning::last), exact);
  json.key("loss"), json.values(thinned(loss, group, Thinning::mean));
  json.key("bits_per_byte"), json.values(thinned(bits, group, Thinning::mean));
  json.close('}');
}

void resumes(PageJson& json, const RunHistory& run) {
  json.key("resumes"), json.open('[');
  for (const auto& note : run.notes)
    if (note.kind == "rewind") json.value(static_cast<double>(note.step), exact);
  json.close(']');
}

// Writes the events that charts mark: those that somebody who looks at a curve asks about.
void marked_events(PageJson& json, const RunHistory& run) {
  constexpr std::string_view marked[] = {"spike", "rollback", "slow_rank", "slow_machine", "rotations"};
  json.key("marks"), json.open('[');
  for (const auto& note : run.notes) {
    const std::string_view what = std::string_view(note.text).substr(0, note.text.find(':'));
    if (note.kind != "event" || std::find(std::begin(marked), std::end(marked), what) == std::end(marked)) continue;
    json.open('{');
    json.key("step"), json.value(static_cast<double>(note.step), exact);
    json.key("text"), json.value(std::string_view(note.text));
    json.close('}');
  }
  json.close(']');
}

// Writes the measured seconds and planned costs of the newest line.
void loads(PageJson& json, const RunHistory& run) {
  if (run.loads.empty()) return;
  const auto& newest = run.loads.back();
  json.key("loads"), json.open('{');
  json.key("step"), json.value(static_cast<double>(newest.step), exact);
  json.key("optimizer_s"), json.values(newest.optimizer_s);
  json.key("planned"), json.values(newest.planned, exact);
  json.close('}');
}

// Writes the newest line with drifts, and the newest with cosines, which may be another one.
void stages(PageJson& json, const RunHistory& run) {
  const auto newest = [&](std::vector<double> RunHistory::Stages::*numbers) {
    return std::find_if(run.stages.rbegin(), run.stages.rend(),
                        [&](const auto& line) { return !(line.*numbers).empty(); });
  };
  const auto drift = newest(&RunHistory::Stages::drift), cosine = newest(&RunHistory::Stages::cosine);
  if (drift == run.stages.rend()) return;
  json.key("stages"), json.open('{');
  json.key("step"), json.value(static_cast<double>(drift->step), exact);
  json.key("staleness"), json.values(drift->staleness);
  json.key("drift"), json.values(drift->drift);
  json.key("cosine"), json.values(cosine == run.stages.rend() ? std::vector<double>() : cosine->cosine);
  json.close('}');
}

// Writes the newest line.
void updates(PageJson& json, const RunHistory& run) {
  if (run.updates.empty()) return;
  json.key("updates"), json.open('{');
  json.key("step"), json.value(static_cast<double>(run.updates.back().step), exact);
  json.key("rows"), json.open('[');
  for (const Metrics::UpdateLine& row : run.updates.back().tensors) {
    json.open('{');
    for (const auto& [name, text] : {std::pair("pattern", &row.pattern), std::pair("rule", &row.rule),
                                     std::pair("split", &row.split), std::pair("owner", &row.owner)})
      json.key(name), json.value(std::string_view(*text));
    json.key("calls"), json.value(static_cast<double>(row.calls), exact);
    json.key("orthogonality_defect"), json.value(row.orthogonality_defect.value_or(std::nan("")), 4);
    for (const auto& [name, number] : {std::pair("update_rms", row.update_rms),
                                       std::pair("update_ratio", row.update_ratio), std::pair("decay", row.decay)})
      json.key(name), json.value(number, 4);
    json.key("layers"), json.values(row.layers, 4);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

// Writes the newest line, and the spectrum of the first one next to it.
void rotations(PageJson& json, const RunHistory& run) {
  if (run.rotations.empty()) return;
  json.key("rotations"), json.open('{');
  json.key("step"), json.value(static_cast<double>(run.rotations.back().step), exact);
  json.key("first_step"), json.value(static_cast<double>(run.rotations.front().step), exact);
  json.key("rows"), json.open('[');
  for (const Metrics::RotationLine& row : run.rotations.back().tensors) {
    Metrics::RotationLine first;
    first.sigma_max = first.sigma_min = first.sigma_rms = std::nan("");
    for (const Metrics::RotationLine& one : run.rotations.front().tensors)
      if (one.pattern == row.pattern) first = one;
    json.open('{');
    json.key("pattern"), json.value(std::string_view(row.pattern));
    for (const auto& [name, number] :
         {std::pair("largest_q", row.largest_q), std::pair("defect", row.defect),
          std::pair("applied_defect", row.applied_defect), std::pair("sigma_max", row.sigma_max),
          std::pair("sigma_min", row.sigma_min), std::pair("sigma_rms", row.sigma_rms),
          std::pair("first_max", first.sigma_max), std::pair("first_min", first.sigma_min),
          std::pair("first_rms", first.sigma_rms)})
      json.key(name), json.value(number);
    json.key("layers"), json.values(row.layers, 4);
    json.close('}');
  }
  json.close(']');
  json.close('}');
}

void tensors(PageJson& json, const TensorHistory& tensors) {
  if (tensors.steps.empty() || tensors.names.empty()) return;
  const std::size_t steps =
      std::max<std::size_t>(2, most_tensor_values / (TensorHistory::quantities.size() * tensors.names.size()));
  const std::size_t group = group_size(tensors.steps.size(), steps);
  json.key("tensors"), json.open('{');
  json.key("names"), json.open('[');
  for (const std::string& name : tensors.names) json.value(name);
  json.close(']');
  json.key("step"), json.values(thinned({tensors.steps.begin(), tensors.steps.end()}, group, Thinning::last), exact);
  for (std::size_t q = 0; q < TensorHistory::quantities.size(); ++q) {
    json.key(TensorHistory::quantities[q]), json.open('[');
    for (const auto& values : tensors.values[q]) json.values(thinned(values, group, Thinning::mean), 4);
    json.close(']');
  }
  json.close('}');
}

}  // namespace

std::string page_data(const std::vector<ReportRun>& runs, const ReportOptions& options) {
  PageJson json;
  json.open('{');
  json.key("reload"), json.value(options.reload);
  json.key("runs"), json.open('[');
  for (const ReportRun& run : runs) {
    json.open('{');
    json.key("name"), json.value(std::string_view(run.label));
    json.key("diverged"), json.value(run.history.diverged);
    series(json, run.history);
    validation(json, run.history);
    resumes(json, run.history);
    marked_events(json, run.history);
    loads(json, run.history);
    stages(json, run.history);
    updates(json, run.history);
    rotations(json, run.history);
    tensors(json, run.history.tensors);
    json.close('}');
  }
  json.close(']');
  json.close('}');
  return json.text;
}

}  // namespace sestina

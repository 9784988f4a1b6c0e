#include "io/report/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>

#include "io/report/history.hpp"

namespace sestina {

void rate_energy(const std::vector<ReportRun>& runs, std::vector<Summary>& summaries) {
  std::vector<double> vocabulary(runs.size());
  std::optional<double> adamw;  // joules
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const FlatDeck deck = flat_deck(runs[r].deck);
    const std::string text = value_of(deck, "model.vocab_size");
    std::from_chars(text.data(), text.data() + text.size(), vocabulary[r]);
    if (!adamw && value_of(deck, "optimizer.kind") == "adamw") adamw = summaries[r].energy_j;
  }
  if (adamw.value_or(0) <= 0) return;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    Summary& s = summaries[r];
    if (!s.loss || s.energy_j.value_or(0) <= 0 || vocabulary[r] <= 0) continue;
    s.energy_efficiency = (std::log(vocabulary[r]) - *s.loss) / (*s.energy_j / *adamw);
  }
}

namespace {

using Runs = std::vector<ReportRun>;

// Draws the line that stands for a run wherever it appears: its number gives colour and dashes (report.css).
std::string swatch(std::size_t run) {
  return fmt::format(
      "<svg class=\"swatch c{} d{}\" viewBox=\"0 0 28 8\" aria-hidden=\"true\"><line x1=\"1\" y1=\"4\" x2=\"27\" "
      "y2=\"4\"/></svg>",
      run % 8, (run + run / 8) % 4);
}

std::string fixed(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "";
}

struct Cell {
  const char* title;
  std::function<std::string(const Summary&)> text;  // "" where there is nothing to say
};

const std::vector<Cell>& cells() {
  static const std::vector<Cell> all = {
      {"step", [](const Summary& s) { return std::to_string(s.steps); }},
      {"training loss", [](const Summary& s) { return fixed(s.loss, 4); }},
      {"validation loss", [](const Summary& s) { return fixed(s.validation_loss, 4); }},
      {"best", [](const Summary& s) { return fixed(s.best_validation_loss, 4); }},
      {"bits per byte", [](const Summary& s) { return fixed(s.bits_per_byte, 4); }},
      {"tokens", [](const Summary& s) { return short_number(static_cast<double>(s.tokens)); }},
      {"tokens/s", [](const Summary& s) { return s.tokens_per_s ? short_number(*s.tokens_per_s) : ""; }},
      {"step time", [](const Summary& s) { return s.step_s ? short_seconds(*s.step_s) : ""; }},
      {"TFLOP/s", [](const Summary& s) { return s.tflops && *s.tflops > 0 ? short_number(*s.tflops) : ""; }},
      {"MFU", [](const Summary& s) { return s.mfu ? fmt::format("{:.1f} %", 100 * *s.mfu) : ""; }},
      {"peak memory",
       [](const Summary& s) {
         return s.memory_peak_bytes > 0 ? short_bytes(static_cast<double>(s.memory_peak_bytes)) : "";
       }},
      {"time", [](const Summary& s) { return short_seconds(s.seconds); }},
      {"energy", [](const Summary& s) { return s.energy_j ? short_number(*s.energy_j) + "J" : ""; }},
      {"processor time", [](const Summary& s) { return s.processor_s ? short_seconds(*s.processor_s) : ""; }},
      {"loss for energy", [](const Summary& s) { return fixed(s.energy_efficiency, 4); }},
      {"skipped", [](const Summary& s) { return s.skipped > 0 ? std::to_string(s.skipped) : ""; }},
  };
  return all;
}

std::string badges(const ReportRun& run) {
  const auto& notes = run.history.notes;
  const auto resumes =
      std::count_if(notes.begin(), notes.end(), [](const auto& note) { return note.kind == "rewind"; });
  std::string out;
  if (run.history.diverged) out += " <span class=\"badge bad\">diverged</span>";
  if (run.running) out += " <span class=\"badge good\">running</span>";
  if (resumes > 0)
    out += fmt::format(" <span class=\"badge\">resumed{}</span>", resumes > 1 ? fmt::format(" {}×", resumes) : "");
  return out;
}

void checkpoint_table(std::string& out, const ReportRun& run) {
  const auto& saved = run.history.checkpoints;
  if (saved.empty()) return;
  const auto there = std::count_if(saved.begin(), saved.end(), [](const auto& c) { return c.there; });
  const auto failed = std::count_if(saved.begin(), saved.end(), [](const auto& c) { return !c.error.empty(); });
  fmt::format_to(
      std::back_inserter(out),
      "<details><summary>{}: {} {}, {} kept{}</summary><div class=\"wide\"><table class=\"records\"><thead><tr>"
      "<th>step</th><th>checkpoint</th><th>size</th><th>written in</th><th>now</th></tr></thead><tbody>\n",
      escape_html(run.label), saved.size(), saved.size() == 1 ? "checkpoint" : "checkpoints", there,
      failed > 0 ? fmt::format(", {} failed", failed) : "");
  for (const auto& c : saved) {
    const std::string now = !c.error.empty() ? "<span class=\"badge bad\">failed</span> " + escape_html(c.error)
                            : c.there        ? "kept"
                                             : "removed";
    fmt::format_to(std::back_inserter(out),
                   "<tr{}><td>{}</td><td class=\"path\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                   c.there ? "" : " class=\"gone\"", c.step, escape_html(c.path),
                   c.bytes > 0 ? short_bytes(c.bytes) : "–", short_seconds(c.seconds), now);
  }
  out += "</tbody></table></div></details>\n";
}

void event_table(std::string& out, const ReportRun& run) {
  const auto& notes = run.history.notes;
  if (notes.empty()) return;
  fmt::format_to(std::back_inserter(out),
                 "<details{}><summary>{}: {} {}</summary><div class=\"wide\"><table class=\"records\"><thead><tr>"
                 "<th>step</th><th>event</th></tr></thead><tbody>\n",
                 run.history.diverged ? " open" : "", escape_html(run.label), notes.size(),
                 notes.size() == 1 ? "event" : "events");
  for (const auto& note : notes)
    fmt::format_to(std::back_inserter(out), "<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", note.step,
                   escape_html(note.text));
  out += "</tbody></table></div></details>\n";
}

// The blocks of state that the traced updates waited for, with what moved of them meanwhile.
void stall_table(std::string& out, const ReportRun& run) {
  const auto& stalls = run.history.stalls;
  if (stalls.empty()) return;
  fmt::format_to(std::back_inserter(out),
                 "<details><summary>{}: waits for state in trace.json</summary><div class=\"wide\"><table "
                 "class=\"records\"><thead><tr><th>rank</th><th>block</th><th>waits</th><th>waited</th>"
                 "<th>longest</th><th>read</th><th>written</th></tr></thead><tbody>\n",
                 escape_html(run.label));
  for (const auto& stall : stalls)
    fmt::format_to(std::back_inserter(out),
                   "<tr><td>{}</td><td class=\"path\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
                   "<td>{}</td></tr>\n",
                   stall.rank, escape_html(stall.block), stall.waits, short_seconds(stall.seconds),
                   short_seconds(stall.longest), short_bytes(stall.bytes_read), short_bytes(stall.bytes_written));
  out += "</tbody></table></div></details>\n";
}

// Lets keys, names of files and commands break after the characters that join their parts.
std::string breakable(const std::string& key) {
  std::string out;
  for (const char c : key) {
    out += escape_html({&c, 1});
    if (std::string_view("._/=-").find(c) != std::string_view::npos) out += "<wbr>";
  }
  return out;
}

void rows(std::string& out, const std::vector<FactRow>& rows, bool mark) {
  for (const FactRow& row : rows) {
    fmt::format_to(std::back_inserter(out), "<tr{}><th scope=\"row\">{}</th>",
                   mark && row.differs() ? " class=\"differs\"" : "", breakable(row.name));
    for (const std::string& value : row.values) out += "<td>" + (value.empty() ? "–" : breakable(value)) + "</td>";
    out += "</tr>\n";
  }
}

}  // namespace

std::string summary_table(const Runs& runs) {
  std::vector<Summary> summaries;
  for (const ReportRun& run : runs) summaries.push_back(summarize(run.history));
  rate_energy(runs, summaries);
  const bool rated =
      std::any_of(summaries.begin(), summaries.end(), [](const Summary& s) { return s.energy_efficiency.has_value(); });
  std::vector<const Cell*> used;
  for (const Cell& cell : cells())
    if (std::any_of(summaries.begin(), summaries.end(), [&](const Summary& s) { return !cell.text(s).empty(); }))
      used.push_back(&cell);
  std::string out = "<div class=\"wide\"><table class=\"summary\"><thead><tr><th scope=\"col\">run</th>";
  for (const Cell* cell : used) out += fmt::format("<th scope=\"col\">{}</th>", cell->title);
  out += "</tr></thead><tbody>\n";
  for (std::size_t r = 0; r < runs.size(); ++r) {
    out += fmt::format("<tr data-run=\"{}\"><th scope=\"row\">{}{}{}</th>", r, swatch(r), escape_html(runs[r].label),
                       badges(runs[r]));
    for (const Cell* cell : used) {
      const std::string text = cell->text(summaries[r]);
      out += "<td>" + (text.empty() ? "–" : text) + "</td>";
    }
    out += "</tr>\n";
  }
  out +=
      "</tbody></table></div>\n<p class=\"hint\">Training loss: mean of the last ten values. Speeds: medians. Time and "
      "energy: sum of the steps, without start, evaluation and waiting for checkpoints. Processor time: user and "
      "system seconds of all ranks, in the place of an energy that no "
      "counter tells.";
  if (rated)
    out +=
        " Loss for energy: (ln of the vocabulary - training loss) / (energy / energy of the first AdamW run), higher "
        "is "
        "better; it compares runs over the same tokens.";
  return out + "</p>\n";
}

std::string facts_table(const Runs& runs) {
  const auto facts = run_facts(runs), differences = deck_differences(runs);
  if (facts.empty() && differences.empty()) return "";
  std::string out = "<div class=\"wide\"><table class=\"facts\"><thead><tr><td></td>";
  for (std::size_t r = 0; r < runs.size(); ++r)
    out += fmt::format("<th scope=\"col\">{}{}</th>", swatch(r), escape_html(runs[r].label));
  out += "</tr></thead>\n<tbody>";
  rows(out, facts, runs.size() > 1);
  out += "</tbody>";
  if (!differences.empty()) {
    out += fmt::format("\n<tbody><tr class=\"head\"><th colspan=\"{}\">deck keys that differ</th></tr>\n",
                       runs.size() + 1);
    rows(out, differences, false);
    out += "</tbody>";
  }
  return out + "</table></div>\n";
}

std::string record_tables(const Runs& runs) {
  std::string out;
  for (const ReportRun& run : runs) {
    if (run.history.bad_lines > 0)
      out +=
          fmt::format("<p class=\"hint\">{}: {} of metrics.jsonl skipped: not readable.</p>\n", escape_html(run.label),
                      run.history.bad_lines == 1 ? "1 line" : fmt::format("{} lines", run.history.bad_lines));
    event_table(out, run);
    checkpoint_table(out, run);
    stall_table(out, run);
    if (!run.deck.empty())
      out += fmt::format("<details><summary>{}: resolved deck</summary><pre tabindex=\"0\">{}</pre></details>\n",
                         escape_html(run.label), escape_html(run.deck));
  }
  return out;
}

}  // namespace sestina

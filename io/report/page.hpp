// The parts of the page of a report: its text, the data of its script, what decks say, and its tables. No Kokkos.
#pragma once
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/report/history.hpp"
#include "io/report/report.hpp"

namespace sestina {

// Texts for the page.
std::string escape_html(std::string_view text);  // & < > " '
std::string json_string(
    std::string_view text);               // quoted; no "<" and no broken UTF-8, so that a script element can hold it
std::string short_number(double value);   // three or four digits: "1.23k", "4.5M"
std::string short_bytes(double value);    // "1.5 GiB"
std::string short_seconds(double value);  // "12 ms", "3.4 s", "5 min 20 s", "3 h 05 min"

// The data that the page's script draws are one JSON object.

// {"reload": seconds, "runs": [{name, diverged, x: {step, tokens, time}, series: {key: [...]}, low, high (of thinned
// series), validation, resumes, marks: [{step, text}], loads, updates, tensors}]}. Numbers have six digits, null is
// "not known". A run has at most about 2000 points of a series, whatever its length.
std::string page_data(const std::vector<ReportRun>&, const ReportOptions&);

// The decks of several runs are shown as flat keys, the facts that a reader asks for first, and their differences.

using FlatDeck = std::vector<std::pair<std::string, std::string>>;  // "data.source.0.path" and the value as TOML

// Returns keys in the deck's order; empty for text that is no TOML.
FlatDeck flat_deck(const std::string& toml);
std::string value_of(const FlatDeck&, std::string_view key);  // "": no such key

// A row of the table of runs: one value for each run, "" where it is not known.
struct FactRow {
  std::string name;
  std::vector<std::string> values;
  bool differs() const;
};
// Returns rows of parameters, optimizer, rate, batch, precision, ranks, then what the newest start said of itself
// (commit, hosts, ...). Rows without any value are left out.
std::vector<FactRow> run_facts(const std::vector<ReportRun>&);
// Returns deck keys in which the runs differ, without those that only name the run (run.name, run.dir).
std::vector<FactRow> deck_differences(const std::vector<ReportRun>&);

// The energy efficiency says how much a run lowers the loss for its energy, compared with AdamW: equation (3) of
// "Asteria" (efficient second-order optimization), section IV-B2.

// Sets energy_efficiency of each run: (ln(vocabulary) - final training loss) / (energy / energy of AdamW), because
// every run starts at the loss of equal odds for all tokens. AdamW: the first run of these with optimizer.kind =
// "adamw" whose energy is known. It is unknown without such a run, and for runs without energy, loss or deck.
void rate_energy(const std::vector<ReportRun>&, std::vector<Summary>&);

// These functions write the page's tables as HTML.
std::string summary_table(const std::vector<ReportRun>&);  // a row per run: loss, speed, memory, badges
std::string facts_table(const std::vector<ReportRun>&);    // a column per run: facts and differing deck keys
std::string record_tables(const std::vector<ReportRun>&);  // checkpoints, events and the deck of each run, collapsed

}  // namespace sestina

// What the decks of several runs say: as flat keys, the facts that a reader asks for first, and where they differ.
// No Kokkos.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/report/report.hpp"

namespace sestina {

using FlatDeck = std::vector<std::pair<std::string, std::string>>;  // "data.source.0.path" and the value as TOML

// In the deck's order; empty for text that is no TOML.
FlatDeck flat_deck(const std::string& toml);
std::string value_of(const FlatDeck&, std::string_view key);  // "": no such key

// A row of the table of runs: one value for each run, "" where it is not known.
struct FactRow {
  std::string name;
  std::vector<std::string> values;
  bool differs() const;
};
// Parameters, optimizer, rate, batch, precision, ranks, then what the newest start said of itself (commit, hosts, ...).
// Rows without any value are left out.
std::vector<FactRow> run_facts(const std::vector<ReportRun>&);
// Deck keys in which the runs differ, without those that only name the run (run.name, run.dir).
std::vector<FactRow> deck_differences(const std::vector<ReportRun>&);

}  // namespace sestina

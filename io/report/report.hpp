// One self-contained HTML page on one or more runs: tables, the series as JSON, and the script that draws them
// (io/report/page/, built into the program). It opens without a network, and without a script it shows the tables. The
// same series can be written as one CSV table. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/report/history.hpp"

namespace sestina {

struct ReportRun {
  RunHistory history;
  std::string label;  // the label as shown; each run has its own
  std::string deck;   // resolved, TOML; "" none
  std::optional<std::int64_t> parameters;
  bool running = false;
};

struct ReportOptions {
  std::string made;         // the time of the report, as text
  double reload = 0;        // seconds until the page loads itself again; 0: it does not
  std::string before = {};  // HTML that stands before the summary
};

std::string report_html(const std::vector<ReportRun>&, const ReportOptions&);

// Writes a header line, then a line per run and step with every value of the metrics file in the form that reads back
// equal. Columns: run, step, tokens, seconds (sum of step_s), the series in the order of their first appearance,
// validation_loss, bits_per_byte. An empty field is not known. Texts are quoted as RFC 4180 says.
std::string report_csv(const std::vector<ReportRun>&);

}  // namespace sestina

// Runs as a report shows them, read from their folders. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "io/report/report.hpp"

namespace sestina {

// Reads the histories and decks of run directories; folders of the same name are told apart by their paths.
// Error(input_missing) for one without metrics.jsonl.
std::vector<ReportRun> read_runs(const std::vector<std::string>& folders);

std::string report_time();  // now, as the page says when it was made

}  // namespace sestina

// The page's tables, as HTML. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "io/report/report.hpp"

namespace sestina {

std::string summary_table(const std::vector<ReportRun>&);  // a row per run: loss, speed, memory, badges
std::string facts_table(const std::vector<ReportRun>&);    // a column per run: facts and differing deck keys
std::string record_tables(const std::vector<ReportRun>&);  // checkpoints, events and the deck of each run, collapsed

}  // namespace sestina

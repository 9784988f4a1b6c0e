// Starts that fail again and again: a run that diverges diverges at the same step whenever it is started from the same
// checkpoint with the same deck. No Kokkos.
#pragma once
#include <cstdint>
#include <string>

namespace sestina {

// Returns what `-r auto` is to say in the place of another start from `step` with this deck (its digest, as in the run
// lines of metrics.jsonl), "" where a start may help: the newest starts of the run directory were from the same step
// with the same deck, three of them in a row, and diverged with the same words. text: the end of metrics.jsonl.
std::string restart_problem(const std::string& text, std::int64_t step, const std::string& deck_digest);

// Reads the end of RUN_DIR/metrics.jsonl, "" where there is none.
std::string end_of_metrics(const std::string& run_dir);

}  // namespace sestina

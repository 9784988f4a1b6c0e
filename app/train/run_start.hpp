// What a start of a run says of itself: in the log, and as the first line of metrics.jsonl; and what a resume changes
// unasked. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/start/memory_check.hpp"
#include "core/deck/options.hpp"
#include "io/report/metrics.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

struct RunStart {
  std::int64_t step = 0;             // it goes on from
  std::string deck;                  // resolved, TOML
  std::string command_line, device;  // device: of the first rank
  int threads = 1;                   // of each rank
  std::string data;                  // SampleSet::description(): a line for each source
  std::string precision = "fp32";    // of products; of bf16 on a host with the way (bf16_way.hpp)
};
// Collective over the ranks.
RunLine run_line(const RunStart&, Runtime&);

// Version, model, optimizer, layout, device with threads, planned against available memory, and data. available: bytes
// that this rank may take.
std::vector<std::string> start_lines(const Options&, const RunStart&, const PlannedRun&, std::uint64_t available);

// The learning rate of the next update where run.steps was changed and the schedule's horizon followed it: a line with
// both numbers and the key that keeps it; "" when nothing jumps. stored: options of the checkpoint; step: its updates.
std::string learning_rate_jump(const Options& stored, const Options& now, std::int64_t step);

}  // namespace sestina

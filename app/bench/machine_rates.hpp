// The rates of this machine as [machine] of a deck has them, which `bench` measures and `plan` computes with. Each
// rank's own rate is measured while all ranks work.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "kernels/blas/machine_peak.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

struct MachineRates {
  double peak_tflops = 0, memory_bandwidth = 0;             // TFLOP/s; GB/s
  std::optional<double> disk_bandwidth, network_bandwidth;  // GB/s; network: only with several ranks
};

// Returns the rates of the slowest rank: GB/s at which every rank writes a file of its own next to `file`, until the
// disk has it; and GB/s that every rank sends to the next one while it receives from the one before, in the memory of
// its space. Collective. It throws errors of the disk on all ranks.
MachineRates measure_rates(const Options&, Runtime&, const MachinePeak& mine, const std::string& file);

// Returns the table as a deck by itself, with the measured updates. how: a comment on how it was measured.
std::string machine_table(const MachineRates&, const std::string& how, const std::vector<MeasuredUpdate>& = {});

// Writes the table on the first rank, whole or not at all. Collective.
void write_machine(Runtime&, const std::string& file, const MachineRates&, TrainOptions::Precision,
                   const std::vector<MeasuredUpdate>& = {});

}  // namespace sestina

// What this machine can reach in the execution space that a deck names: its peaks, and the median of what is measured.
// The bodies are typed; their arguments and results are not.
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "kernels/blas/machine_peak.hpp"

namespace sestina {

double median(std::vector<double>);

MachinePeak measure_machine_peak(RunOptions::Space);

}  // namespace sestina

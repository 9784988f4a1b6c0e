// What the benchmarks share: their options and the middle of repeated timings.
#pragma once
#include <vector>

#include "app/command/verbs.hpp"
#include "core/deck/options.hpp"

namespace sestina {

// Options of the benchmark's deck, checked, with the memory they need.
Options bench_options(const BenchArguments&);

// Of at least one value.
double median(std::vector<double> values);

}  // namespace sestina

// What the page's script draws, as one JSON object. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "io/report/report.hpp"

namespace sestina {

// {"reload": seconds, "runs": [{name, diverged, x: {step, tokens, time}, series: {key: [...]}, low, high (of thinned
// series), validation, resumes, loads, tensors}]}. Numbers have six digits, null is "not known". A run has at most
// about 2000 points of a series, whatever its length.
std::string page_data(const std::vector<ReportRun>&, const ReportOptions&);

}  // namespace sestina

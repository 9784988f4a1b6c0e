// One self-contained HTML page with plots of one or more runs (inline SVG, no network). No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "io/metrics.hpp"

namespace sestina {

std::string report_html(const std::vector<RunHistory>&, const std::vector<std::string>& resolved_decks);

}  // namespace sestina

// How much loss a run takes off for its energy, compared with AdamW: equation (3) of "Asteria" (efficient second-order
// optimization), section IV-B2. No Kokkos.
#pragma once
#include "io/report/report.hpp"
#include "io/report/series.hpp"

namespace sestina {

// energy_efficiency of each run: (ln(vocabulary) - final training loss) / (energy / energy of AdamW), the loss of equal
// odds for all tokens being where every run starts. AdamW: the first run of these with optimizer.kind = "adamw" whose
// energy is known. Unknown without it, and for runs without energy, loss or deck.
void rate_energy(const std::vector<ReportRun>&, std::vector<Summary>&);

}  // namespace sestina

// GaLore (arXiv 2403.03507): Adam on the gradient projected on its leading singular vectors. The lazy periods and the
// few bits of Q-GaLore (arXiv 2407.08296) are switches. No Kokkos.
#pragma once
#include "core/optimizer/methods/low_rank_options.hpp"

namespace sestina {

struct GaloreOptions : LowRankOptions {
  double lazy_cosine = 0;

  GaloreOptions() { scale = 0.25; }
  void fields(OptionFields&);
};

void register_galore();

}  // namespace sestina

// Adam on whole matrices, with the numbers of AdamW (core/optimizer/methods/adamw.hpp): for rules on the update that
// need norms of matrices (kernels/optimizer/update_rules.hpp), which AdamW, that takes any slab of them, does not have.
// No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;

  void fields(OptionFields&);
};

void register_adam();

}  // namespace sestina

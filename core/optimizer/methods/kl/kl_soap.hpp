// KL-SOAP (arXiv 2509.03378): the bases of KL-Shampoo, and in them Adam without bias correction. No Kokkos.
#pragma once
#include "core/optimizer/methods/kl/kl_shampoo.hpp"

namespace sestina {

struct KlSoapOptions : KlOptions {
  double beta2 = 0.98;

  void fields(OptionFields&);
};

void register_kl_soap();

}  // namespace sestina

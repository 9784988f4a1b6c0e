// SOAP (Vyas et al., arXiv 2409.11321): the dialect of its authors by default, every known difference as a switch. No
// Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

struct SoapOptions {
  double beta1 = 0.95, beta2 = 0.95, eps = 1e-8, factor_beta = 0.95;
  std::int64_t max_dim = 10000;
  enum class Sides : std::uint8_t { both, smaller } sides = Sides::both;
  FirstStep first_step = FirstStep::skip;
  Order factor_update = Order::after, decay_order = Order::after;
  bool bias_correction = true, factor_bias_correction = false, permute_second_moment = true;
  BasisForm basis_first = BasisForm::gram;
  enum class Refresh : std::uint8_t { qr, eigh } basis_refresh = Refresh::qr;
  MomentumBasis momentum_basis = MomentumBasis::original;
  bool normalize = false;
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;

  void fields(OptionFields&);
};

void register_soap();

}  // namespace sestina

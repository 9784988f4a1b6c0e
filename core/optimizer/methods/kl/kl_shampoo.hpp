// KL-Shampoo (arXiv 2509.03378), as its authors define it, but for where the eigenvalues start. No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

struct KlOptions {
  double beta1 = 0.9, eps = 1e-8, factor_beta = 0.98;
  std::int64_t max_dim = 10000;
  enum class Start : std::uint8_t { gradient, given } eigenvalue_start = Start::gradient;
  double initial_eigenvalue = 0.1;  // for Start::given
  bool clamp = true;
  double clamp_floor = 10, clamp_ceiling = 4000;
  bool sort = false;
  BasisForm basis_first = BasisForm::gram;
  FirstStep first_step = FirstStep::skip;
  Order decay_order = Order::after;
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;

  void fields(OptionFields&);
};

void register_kl_shampoo();

}  // namespace sestina

// Adam in a rotated basis against stale gradients (arXiv 2602.03515): the corrected rules by default, those of the
// published code as dialect "release". No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

struct BasisRotationOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, factor_beta = 0.999;
  std::int64_t max_dim = 10000;
  enum class Source : std::uint8_t { second, first } source = Source::second;  // moment that the bases follow
  enum class Geometry : std::uint8_t { bilateral, unilateral } geometry = Geometry::bilateral;
  BasisForm basis_first = BasisForm::gram;
  MomentumBasis momentum_basis = MomentumBasis::original;
  enum class Dialect : std::uint8_t { corrected, release } dialect = Dialect::corrected;
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;

  void fields(OptionFields&);
};

void register_basis_rotation();

}  // namespace sestina

// SOAP-Muon (N. Vyas, 2026; trained in modded-nanogpt, track 3, record of 2026-06-09): the momentum of Muon is divided
// by the root of its second moment in the eigenbases of SOAP before Newton-Schulz makes it orthogonal. No Kokkos.
//
// For gradient G, momentum M and u = lerp(G, M, momentum), the bases Ql and Qr of the update before:
//   P = Ql^T u Qr,  V = beta2 V + (1 - beta2) P^2,  D = Ql (P / max(V^1/2, eps)) Qr^T,  D *= |u| / |D|,
//   W -= lr scale NS(D),
// and then L = lerp(L, G G^T, 1 - factor_beta), R = lerp(R, G^T G, 1 - factor_beta), Q = qr(K Q) with the columns of Q
// in the order of their size in K (L or R). The first update has no bases, and is that of Muon. Nothing is corrected
// for its start.
//
// K + basis_shift trace(K) I stands for K, which the published rule has without a shift: where a gradient has no signal
// K q is rounding, and a basis that is made again in every update would turn there at random, differently on every
// layout, while V, divided by which rounding counts as much as signal, belongs to its last place.
//
// The source gates the matrix o of attention by how much D agrees with u; this rule does not.
#pragma once
#include "core/optimizer/methods/muon.hpp"

namespace sestina {

struct SoapMuonOptions : MuonOptions {
  double beta2 = 0.9, eps = 1e-8, factor_beta = 0.9, basis_shift = 1e-3;
  std::int64_t max_dim = 10000;
  BasisForm basis_first = BasisForm::gram;
  MatmulPrecision matmul_precision = MatmulPrecision::fp32;

  SoapMuonOptions();
  void fields(OptionFields&);
};

void register_soap_muon();

}  // namespace sestina

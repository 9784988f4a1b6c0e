// Muon (K. Jordan et al., 2024) and the two relatives that follow it up with a second moment of the orthogonalised
// direction: NorMuon (Li et al., arXiv 2510.05491) and AdaMuon (Si et al., arXiv 2507.11005). No Kokkos.
#pragma once
#include "core/optimizer/methods/muon_options.hpp"

namespace sestina {

// Of NorMuon and AdaMuon.
struct MuonMomentOptions : MuonOptions {
  double beta2 = 0.95, eps = 1e-8;
  bool keep_norm = true;

  void fields(OptionFields&);
};

void register_muon();
void register_normuon();
void register_adamuon();

}  // namespace sestina

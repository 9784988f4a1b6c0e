// What Muon, NorMuon and AdaMuon share as data: the keys of the deck up to Newton-Schulz, and what they mean for a
// matrix of a given shape. No Kokkos.
#pragma once
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/optimizer/kinds/newton_schulz_sets.hpp"

namespace sestina {

// M = keep M + gain G, u = p G + q M, direction scale * NS(u).
struct MuonRule {
  double keep = 0, gain = 0, p = 0, q = 0;
  std::vector<NewtonSchulzStep> steps;
  double ns_eps = 0;
  NewtonSchulzNorm norm = NewtonSchulzNorm::max;
  enum class Precision { automatic, fp32, bf16 } precision = Precision::automatic;
  double scale = 1;
};

std::vector<KindKey> muon_keys();
std::vector<KindKey> muon_keys_with_second_moment();  // of NorMuon and AdaMuon
// Of the iterations that the options ask for; the first of their three products and the second are symmetric.
UpdateWork newton_schulz_work(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
// Likewise of a shard (side, length) that is updated with the others of its matrix, which is cut along `length`
// (kernels/optimizer/newton_schulz_shard.hpp). counted: it adds its own Gram matrix to the sum.
UpdateWork newton_schulz_shard_work(const MatrixOptions&, std::int64_t side, std::int64_t length, bool counted);
MuonRule read_muon_rule(const MatrixOptions&, std::size_t rows, std::size_t cols);

}  // namespace sestina

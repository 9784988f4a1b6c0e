// Muon (K. Jordan et al., 2024) and the two relatives that follow it up with a second moment of the orthogonalised
// direction, NorMuon and AdaMuon: the published coefficients of Newton-Schulz, the keys that they share, and the
// three. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/kinds.hpp"
#include "kernels/optimizer/newton_schulz_step.hpp"

namespace sestina {

// Newton-Schulz iteration has published sets of coefficients, known by name; a set says what happens when more or fewer
// steps are asked for than it has.

// Returns the names of the sets; the first is the default.
const std::vector<std::string>& newton_schulz_set_names();

// Returns the number of steps of a set that can be used with no other number.
std::optional<std::int64_t> only_newton_schulz_steps(std::string_view set);

// Returns `steps` steps of the set, 0: as many as it is usually run with. With more steps than entries a set whose last
// entry holds singular values at 1 repeats that one; the others start again. Throws Error(bad_deck) for cubic5, which
// is 5 steps and nothing else.
std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view set, std::int64_t steps);

// The keys that Muon, NorMuon and AdaMuon share, up to Newton-Schulz, and their meaning for a matrix of a given shape.
struct MuonOptions {
  double momentum = 0.95;
  enum class Form : std::uint8_t { ema, sum } momentum_form = Form::ema;
  bool nesterov = true;
  std::string ns_set = newton_schulz_set_names().front();
  std::int64_t ns_steps = 0;  // 0: as many as the set is usually run with
  enum class Precision : std::uint8_t { automatic, fp32, bf16 } ns_precision = Precision::automatic;
  double ns_eps = 1e-7;
  NewtonSchulzNorm ns_normalize = NewtonSchulzNorm::max;
  // Factors of a matrix m x n, as the sources call them: "original" and "shape_scaling" are one (Muon, Megatron),
  // "match_rms_adamw" gives the RMS of an AdamW update (Moonlight, arXiv 2502.16982).
  enum class Scale : std::uint8_t { match_rms_adamw, original, shape_scaling, spectral, unit_rms_norm };
  Scale scale = Scale::match_rms_adamw;
  double extra_scale = 1;

  void fields(OptionFields&);
};

// The rule for gradient G and momentum M: M = keep M + gain G, u = p G + q M, direction scale * NS(u) (Newton-Schulz).
struct MuonRule {
  double keep = 0, gain = 0, p = 0, q = 0;
  std::vector<NewtonSchulzStep> steps;
  double ns_eps = 0;
  NewtonSchulzNorm norm = NewtonSchulzNorm::max;
  MuonOptions::Precision precision = MuonOptions::Precision::automatic;
  double scale = 1;
};
MuonRule muon_rule(const MuonOptions&, std::size_t rows, std::size_t cols);

// Returns the FLOPs of the iterations that the options ask for; the first of their three products and the second are
// symmetric.
UpdateWork newton_schulz_work(const MuonOptions&, std::int64_t rows, std::int64_t cols);
// Returns the FLOPs for a shard (side, length) that is updated with the others of its matrix, which is cut along
// `length` (kernels/optimizer/newton_schulz.hpp). counted: it adds its own Gram matrix to the sum.
UpdateWork newton_schulz_shard_work(const MuonOptions&, std::int64_t side, std::int64_t length, bool counted);

// Muon (K. Jordan et al., 2024) has two relatives that follow it up with a second moment of the orthogonalised
// direction: NorMuon (Li et al., arXiv 2510.05491) and AdaMuon (Si et al., arXiv 2507.11005).

// The keys of NorMuon and AdaMuon.
struct MuonMomentOptions : MuonOptions {
  double beta2 = 0.95, eps = 1e-8;
  bool keep_norm = true;

  void fields(OptionFields&);
};

void register_muon();
void register_normuon();
void register_adamuon();

}  // namespace sestina

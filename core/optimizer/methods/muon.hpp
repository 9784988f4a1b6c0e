// Muon (K. Jordan et al., 2024) and the two relatives that follow it up with a second moment of the orthogonalised
// direction, NorMuon and AdaMuon: the keys that they share, and the three. No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"
#include "kernels/optimizer/newton_schulz_sets.hpp"

namespace sestina {

// The keys that Muon, NorMuon and AdaMuon share, up to Newton-Schulz, and their meaning for a matrix of a given shape.
struct MuonOptions {
  double momentum = 0.95;
  enum class Form : std::uint8_t { ema, sum } momentum_form = Form::ema;
  bool nesterov = true;
  std::string ns_set = newton_schulz_set_names().front();
  std::int64_t ns_steps = 0;                           // 0: as many as the set is usually run with
  std::vector<std::array<double, 3>> ns_coefficients;  // a step in each row, in the place of a set; empty: the set
  enum class Precision : std::uint8_t { automatic, fp32, bf16 } ns_precision = Precision::automatic;
  double ns_eps = 1e-7;
  NewtonSchulzNorm ns_normalize = NewtonSchulzNorm::max;
  NewtonSchulzForm ns_form = NewtonSchulzForm::plain;
  enum class Norm : std::uint8_t { frobenius, gram } ns_norm = Norm::frobenius;
  bool row_equilibration = false, norm_snap = false;
  // Factors of a matrix m x n, as the sources call them: "original" and "shape_scaling" are one (Muon, Megatron),
  // "match_rms_adamw" gives the RMS of an AdamW update (Moonlight, arXiv 2502.16982).
  enum class Scale : std::uint8_t { match_rms_adamw, original, shape_scaling, spectral, unit_rms_norm };
  Scale scale = Scale::match_rms_adamw;
  double extra_scale = 1;

  void fields(OptionFields&);
};

// Returns the power of the width with which the spectral norm of an update grows: 0 where it is that of a matrix of
// unit RMS norm, whose sides grow together.
double width_power(MuonOptions::Scale);

// The rule of a matrix: the momentum, then scale * NS(u) (Newton-Schulz).
struct MuonRule {
  double momentum = 0;
  MuonOptions::Form form = MuonOptions::Form::ema;
  bool nesterov = false;
  std::vector<NewtonSchulzStep> steps;
  NewtonSchulz numbers;  // without its steps
  MuonOptions::Precision precision = MuonOptions::Precision::automatic;
  double scale = 1;

  // Returns the factors with this momentum, or with the rule's own.
  MomentumRule factors(std::optional<double> scheduled) const;
  // Returns the iteration; it refers to the steps of this.
  NewtonSchulz newton_schulz() const {
    NewtonSchulz ns = numbers;
    ns.steps = steps;
    return ns;
  }
  // Returns whether products are in bf16: where the model is computed in bf16, unless the deck says otherwise.
  bool in_bf16(bool computes_bf16) const {
    using Precision = MuonOptions::Precision;
    return precision == Precision::bf16 || (precision == Precision::automatic && computes_bf16);
  }
};
MuonRule muon_rule(const MuonOptions&, std::size_t rows, std::size_t cols);

// Returns the steps that the options ask for.
std::vector<NewtonSchulzStep> newton_schulz_steps(const MuonOptions&);
// Collects errors where keys of Newton-Schulz contradict one another, or cannot be had of shards; decides on an
// automatic form where products are in bf16: plain, as the products that the gram form adds would be in fp32.
void check_newton_schulz(Deck&, const Options&, MuonOptions&);

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

enum class MuonVariant : std::uint8_t { muon, normuon, adamuon };
// Returns the one of the three that the options are of; Error(internal): they are of another kind.
MuonVariant muon_variant(const MatrixOptions&);
// Returns the keys that the three share.
const MuonOptions& muon_options(const MatrixOptions&);

void register_muon();
void register_normuon();
void register_adamuon();

}  // namespace sestina

#include "core/optimizer/methods/soap_muon/soap_muon.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/rotated/rotated_adam.hpp"
#include "core/optimizer/methods/soap_muon/soap_muon_updates.hpp"

namespace sestina {

SoapMuonOptions::SoapMuonOptions() {
  scale = Scale::original;
  ns_norm = Norm::gram;
}

void SoapMuonOptions::fields(OptionFields& f) {
  MuonOptions::fields(f);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.number("factor_beta", factor_beta, below_one);
  f.integer("max_dim", max_dim, {.min = 1});
  f.number("basis_shift", basis_shift, below_one);
  f.choice("basis_first", basis_first, {"eigh", "svd"});
  f.choice("matmul_precision", matmul_precision, matmul_precisions);
}

RefreshRule soap_muon_refresh(const SoapMuonOptions& o) {
  RefreshRule rule;
  rule.first = o.basis_first;
  rule.shift = o.basis_shift;
  return rule;
}

namespace {

// Returns the work: a factor, two rotations, and Newton-Schulz.
UpdateWork soap_muon_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  const auto& o = options.as<SoapMuonOptions>();
  const Sides sides;
  UpdateWork work = side_work(sides, rows, cols, 1 + rotation_products(true), qr_step);
  work.update += newton_schulz_work(o, rows, cols).update;
  work.first_bases = first_bases_work(o.basis_first, sides, rows, cols);
  return work;
}

MatrixKind soap_muon_kind() {
  MatrixKind kind = matrix_kind<SoapMuonOptions>("soap-muon");
  kind.refresh_every = 1;
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return rotated_fields(options, Sides{}, true, false, rows, cols);
  };
  kind.stated_flops = [](double rows, double cols) {
    return stated_rotation(rows, cols) + stated_products(rows, cols);
  };
  kind.work = soap_muon_work;
  kind.newton_schulz = [](const MatrixOptions& options) {
    return static_cast<std::int64_t>(newton_schulz_steps(options.as<SoapMuonOptions>()).size());
  };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    const auto& o = options.as<SoapMuonOptions>();
    return two_sided_needs(options, Sides{}, soap_muon_refresh(o), rows, cols);
  };
  // Newton-Schulz, whose polynomial is odd, keeps what SOAP keeps; rows that are scaled alone are not skew.
  kind.keeps_skew = [](const MatrixOptions& options) { return !options.as<SoapMuonOptions>().row_equilibration; };
  kind.max_dim = [](const MatrixOptions& options) { return options.as<SoapMuonOptions>().max_dim; };
  kind.width_power = [](const MatrixOptions& options) {
    return std::optional(width_power(options.as<SoapMuonOptions>().scale));
  };
  kind.checks = {[](Deck& deck, Options& options) {
    check_newton_schulz(deck, options, std::any_cast<SoapMuonOptions&>(options.optimizer.matrix->keys));
  }};
  return kind;
}

}  // namespace

void register_soap_muon() { register_matrix_kind<SoapMuon>(soap_muon_kind()); }

}  // namespace sestina

#include "core/optimizer/methods/muon_options.hpp"

#include <algorithm>
#include <cmath>

namespace sestina {
namespace {

double shape_scale(MuonOptions::Scale scale, double m, double n) {
  using Scale = MuonOptions::Scale;
  if (scale == Scale::match_rms_adamw) return 0.2 * std::sqrt(std::max(m, n));
  if (scale == Scale::spectral) return std::sqrt(std::max(m, n));
  if (scale == Scale::unit_rms_norm) return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

}  // namespace

void MuonOptions::fields(OptionFields& f) {
  f.number("momentum", momentum, below_one);
  f.choice("momentum_form", momentum_form, {"ema", "sum"});
  f.flag("nesterov", nesterov);
  f.word("ns_set", ns_set, newton_schulz_set_names());
  f.integer("ns_steps", ns_steps, {.min = 0, .max = 100});
  f.choice("ns_precision", ns_precision, {"auto", "fp32", "bf16"});
  f.eps("ns_eps", ns_eps);
  f.choice("ns_normalize", ns_normalize, {"max", "add"});
  f.choice("scale", scale, {"match_rms_adamw", "original", "shape_scaling", "spectral", "unit_rms_norm"});
  f.number("extra_scale", extra_scale);
  f.only("decay_order", "before");
}

UpdateWork newton_schulz_work(const MuonOptions& o, std::int64_t rows, std::int64_t cols) {
  return newton_schulz_shard_work(o, std::min(rows, cols), std::max(rows, cols), true);
}

UpdateWork newton_schulz_shard_work(const MuonOptions& o, std::int64_t side, std::int64_t length, bool counted) {
  const auto s = static_cast<double>(side), l = static_cast<double>(length);
  UpdateWork work;
  for (const NewtonSchulzStep& step : newton_schulz_steps(o.ns_set, o.ns_steps))
    work.update += (counted ? 3 : 2) * l * s * s + (step.c != 0 ? s * s * s : 0);  // a cubic step squares nothing
  return work;
}

MuonRule muon_rule(const MuonOptions& o, std::size_t rows, std::size_t cols) {
  const double mu = o.momentum;
  MuonRule rule;
  rule.keep = mu;
  rule.gain = o.momentum_form == MuonOptions::Form::ema ? 1 - mu : 1;
  rule.p = o.nesterov ? rule.gain : 0;
  rule.q = o.nesterov ? mu : 1;
  rule.steps = newton_schulz_steps(o.ns_set, o.ns_steps);
  rule.ns_eps = o.ns_eps;
  rule.norm = o.ns_normalize;
  rule.precision = o.ns_precision;
  rule.scale = o.extra_scale * shape_scale(o.scale, static_cast<double>(rows), static_cast<double>(cols));
  return rule;
}

}  // namespace sestina

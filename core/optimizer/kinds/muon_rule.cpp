#include "core/optimizer/kinds/muon_rule.hpp"

#include <algorithm>
#include <cmath>

namespace sestina {
namespace {

// As the sources call them: "original" and "shape_scaling" are one (Muon, Megatron), "match_rms_adamw" gives the RMS of
// an AdamW update (Moonlight, arXiv 2502.16982).
double shape_scale(const std::string& word, double m, double n) {
  if (word == "match_rms_adamw") return 0.2 * std::sqrt(std::max(m, n));
  if (word == "spectral") return std::sqrt(std::max(m, n));
  if (word == "unit_rms_norm") return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

}  // namespace

std::vector<KindKey> muon_keys() {
  return {number_key("momentum", 0.95, {.min = 0, .max = 1, .open_max = true}),
          word_key("momentum_form", {"ema", "sum"}),
          flag_key("nesterov", true),
          word_key("ns_set", newton_schulz_set_names()),
          integer_key("ns_steps", 0, {.min = 0, .max = 100}),
          word_key("ns_precision", {"auto", "fp32", "bf16"}),
          eps_key("ns_eps", 1e-7),
          word_key("ns_normalize", {"max", "add"}),
          word_key("scale", {"match_rms_adamw", "original", "shape_scaling", "spectral", "unit_rms_norm"}),
          number_key("extra_scale", 1.0),
          word_key("decay_order", {"before"})};
}

std::vector<KindKey> muon_keys_with_second_moment() {
  std::vector<KindKey> keys = muon_keys();
  keys.push_back(number_key("beta2", 0.95, {.min = 0, .max = 1, .open_max = true}));
  keys.push_back(eps_key("eps", 1e-8));
  keys.push_back(flag_key("keep_norm", true));
  return keys;
}

UpdateWork newton_schulz_work(const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
  return newton_schulz_shard_work(options, std::min(rows, cols), std::max(rows, cols), true);
}

UpdateWork newton_schulz_shard_work(const MatrixOptions& options, std::int64_t side, std::int64_t length,
                                    bool counted) {
  const auto s = static_cast<double>(side), l = static_cast<double>(length);
  UpdateWork work;
  for (const NewtonSchulzStep& step : newton_schulz_steps(options.word("ns_set"), options.integer("ns_steps")))
    work.update += (counted ? 3 : 2) * l * s * s + (step.c != 0 ? s * s * s : 0);  // a cubic step squares nothing
  return work;
}

MuonRule read_muon_rule(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  MuonRule rule;
  const double mu = options.number("momentum");
  rule.keep = mu;
  rule.gain = options.word("momentum_form") == "ema" ? 1 - mu : 1;
  rule.p = options.flag("nesterov") ? rule.gain : 0;
  rule.q = options.flag("nesterov") ? mu : 1;
  rule.steps = newton_schulz_steps(options.word("ns_set"), options.integer("ns_steps"));
  rule.ns_eps = options.number("ns_eps");
  rule.norm = options.word("ns_normalize") == "add" ? NewtonSchulzNorm::add : NewtonSchulzNorm::max;
  const std::string& precision = options.word("ns_precision");
  using Precision = MuonRule::Precision;
  rule.precision = precision == "auto" ? Precision::automatic : precision == "fp32" ? Precision::fp32 : Precision::bf16;
  rule.scale = options.number("extra_scale") *
               shape_scale(options.word("scale"), static_cast<double>(rows), static_cast<double>(cols));
  return rule;
}

}  // namespace sestina

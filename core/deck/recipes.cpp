#include "core/deck/recipes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/deck/deck.hpp"
#include "core/deck/kinds.hpp"
#include "core/deck/options.hpp"

namespace sestina {
namespace {

using RecipeKeys = std::vector<RecipeKey>;

// Adds keys of one source.
class Source {
 public:
  Source(RecipeKeys& keys, std::string source) : keys_(keys), source_(std::move(source)) {}
  Source& operator()(std::string key, std::string value) {
    keys_.push_back({std::move(key), std::move(value), source_});
    return *this;
  }

 private:
  RecipeKeys& keys_;
  std::string source_;
};

std::int64_t share(double part, std::int64_t steps) {
  return static_cast<std::int64_t>(std::llround(part * static_cast<double>(steps)));
}

std::string rows_text(const std::string& row, int count) {
  return fmt::format("[{}]", fmt::join(std::vector<std::string>(static_cast<std::size_t>(count), row), ", "));
}

// Returns the points of a momentum that rises from `low` in `rise` updates, and falls to `end` over the last `fall` of
// all; a fall that would begin before the rise ends begins there.
std::string momentum_points(double low, double high, double end, std::int64_t rise, std::int64_t fall,
                            std::int64_t steps) {
  std::string text = fmt::format("[1, {}], [{}, {}]", low, 1 + rise, high);
  if (steps - fall > rise) text += fmt::format(", [{}, {}]", 1 + steps - fall, high);
  if (steps > rise) text += fmt::format(", [{}, {}]", 1 + steps, end);
  return "[" + text + "]";
}

// Returns groups for the embedding, and for the head where it has weights of its own; each is the rest of a table.
std::string end_groups(const ModelConfig& model, const std::string& embedding, const std::string& head) {
  std::string text = fmt::format("{{ match = \"model.embed_tokens.weight\", {} }}", embedding);
  if (!model.tie_word_embeddings && !head.empty()) text += fmt::format(", {{ match = \"lm_head.weight\", {} }}", head);
  return "[" + text + "]";
}

// The keys that both entries of the contest set: 12 steps of one polynomial, in bf16.
void contest_products(Source& set) {
  set("optimizer.momentum_form", "\"ema\"")("optimizer.nesterov", "true");
  set("optimizer.ns_coefficients", rows_text("[2, -1.5, 0.5]", 12))("optimizer.ns_precision", "\"bf16\"");
  set("optimizer.ns_eps", "1e-7")("optimizer.scale", "\"original\"")("train.clip_norm", "0");
}

// The baseline of the contest in steps (modded-nanogpt, track 3, train_gpt_simple.py at f411b3d).
RecipeKeys track3_muon(const ModelConfig& model, std::int64_t steps) {
  RecipeKeys keys;
  Source set(keys, "modded-nanogpt, track 3, train_gpt_simple.py");
  set("optimizer.kind", "\"muon\"")("optimizer.momentum", "0.95")("optimizer.weight_decay", "0.05");
  contest_products(set);
  set("optimizer.ns_normalize", "\"add\"");
  set("optimizer.scalar.lr", "0.015")("optimizer.scalar.beta1", "0.8")("optimizer.scalar.beta2", "0.95");
  set("optimizer.scalar.eps", "1e-10")("optimizer.scalar.weight_decay", "0.001");
  // Rates of the embedding and the head: 0.7 and 0.004.
  set("optimizer.group", end_groups(model, fmt::format("lr_multiplier = {}", 0.7 / 0.015),
                                    fmt::format("lr_multiplier = {}", 0.004 / 0.015)));
  set("schedule.kind", "\"wsd\"")("schedule.lr", "0.025")("schedule.warmup_steps", "0")("schedule.min_lr_ratio", "0");
  if (steps > 0) set("schedule.decay_steps", std::to_string(share(0.7, steps)));
  return keys;
}

// The fastest entry without averages of weights (record of 2026-06-09, train_gpt_clean_SOTA.py). Its rate falls as
// min(lr, c (T - t)^1.2), where c makes the power count 2386 updates before the end of 2900.
RecipeKeys track3_soap_muon(const ModelConfig& model, std::int64_t steps) {
  RecipeKeys keys;
  Source set(keys, "modded-nanogpt, track 3, train_gpt_clean_SOTA.py");
  set("optimizer.kind", "\"soap-muon\"")("optimizer.momentum", "0.95")("optimizer.weight_decay", "0");
  set("optimizer.beta2", "0.9")("optimizer.factor_beta", "0.9")("optimizer.eps", "1e-8");
  contest_products(set);
  set("optimizer.update_floor", "0.3825")("optimizer.radial_brake", "0.5")("optimizer.radius_pin", "true");
  if (steps > 0) set("optimizer.momentum_schedule", momentum_points(0.85, 0.95, 0.85, 300, 200, steps));
  set("optimizer.refresh.every", "1");
  set("optimizer.scalar.lr", "0.01")("optimizer.scalar.beta1", "0.8")("optimizer.scalar.beta2", "0.997");
  set("optimizer.scalar.eps", "1e-10")("optimizer.scalar.weight_decay", "0");
  // Rates of the embedding and the head: 0.3 and 1/320.
  set("optimizer.group",
      end_groups(model, "lr_multiplier = 30, beta2 = 0.99", fmt::format("lr_multiplier = {}, beta2 = 0.99", 0.3125)));
  set("schedule.kind", "\"power\"")("schedule.power", "1.2")("schedule.lr", "0.0375");
  set("schedule.warmup_steps", "0")("schedule.min_lr_ratio", "0");
  if (steps > 0) set("schedule.decay_steps", std::to_string(share(2386.0 / 2900, steps)));
  return keys;
}

// nanochat (92d63d4): NorMuon with cautious decay. Its factors for batch and length of the run are 1 here.
RecipeKeys nanochat(const ModelConfig& model, std::int64_t steps) {
  RecipeKeys keys;
  Source optim(keys, "nanochat, nanochat/optim.py"), model_file(keys, "nanochat, nanochat/gpt.py"),
      base(keys, "nanochat, scripts/base_train.py");
  optim("optimizer.kind", "\"normuon\"")("optimizer.momentum_form", "\"ema\"")("optimizer.nesterov", "true");
  optim("optimizer.ns_set", "\"polar_express_dion\"")("optimizer.ns_eps", "1e-6")("optimizer.ns_normalize", "\"add\"");
  optim("optimizer.ns_precision", "\"auto\"")("optimizer.keep_norm", "true")("optimizer.scale", "\"original\"");
  optim("optimizer.ns_norm", "\"gram\"")("optimizer.row_equilibration", "true")("optimizer.norm_snap", "true");
  optim("optimizer.cautious", "true");
  model_file("optimizer.momentum", "0.95")("optimizer.beta2", "0.9")("optimizer.ns_steps", "5");
  base("optimizer.weight_decay", "0.28")("optimizer.decay_schedule", "\"cosine\"");
  constexpr double fall = 0.65;
  if (steps > 0) base("optimizer.momentum_schedule", momentum_points(0.85, 0.97, 0.9, 400, share(fall, steps), steps));
  const double rate = 0.008 * std::sqrt(768.0 / static_cast<double>(model.hidden_size));  // of the head
  base("optimizer.scalar.lr", fmt::format("{}", rate));
  model_file("optimizer.scalar.beta1", "0.8")("optimizer.scalar.beta2", "0.96")("optimizer.scalar.eps", "1e-10");
  model_file("optimizer.scalar.weight_decay", "0.01");
  model_file("optimizer.group", end_groups(model, "lr_multiplier = 37.5, beta2 = 0.995, weight_decay = 0.001", ""));
  base("schedule.kind", "\"wsd\"")("schedule.lr", "0.02")("schedule.warmup_steps", "40");
  base("schedule.min_lr_ratio", "0.05")("train.clip_norm", "0");
  if (steps > 0) base("schedule.decay_steps", std::to_string(share(fall, steps)));
  return keys;
}

// The Muon of Moonlight's code, which Kimi K2 goes on with.
void moonlight_products(Source& set) {
  set("optimizer.kind", "\"muon\"")("optimizer.momentum", "0.95")("optimizer.momentum_form", "\"sum\"");
  set("optimizer.ns_set", "\"simple\"")("optimizer.ns_steps", "5")("optimizer.ns_precision", "\"bf16\"");
  set("optimizer.ns_eps", "1e-7")("optimizer.ns_normalize", "\"add\"")("optimizer.scale", "\"match_rms_adamw\"");
  set("optimizer.scalar.beta1", "0.9")("optimizer.scalar.beta2", "0.95")("optimizer.scalar.eps", "1e-8");
}

// Moonlight (arXiv 2502.16982), first two stages of its pretraining.
RecipeKeys moonlight(const ModelConfig&, std::int64_t) {
  RecipeKeys keys;
  Source code(keys, "Moonlight, examples/toy_train.py"), report(keys, "arXiv 2502.16982, pretraining");
  moonlight_products(code);
  code("optimizer.nesterov", "true");
  report("optimizer.weight_decay", "0.1")("optimizer.scalar.weight_decay", "0.1");
  report("schedule.kind", "\"cosine\"")("schedule.lr", "4.2e-4")("schedule.warmup_steps", "2000");
  report("schedule.min_lr_ratio", "0.1");
  return keys;
}

// Kimi K2 (arXiv 2507.20534): 10 T tokens at the full rate, then 5.5 T in which it falls, as a cosine there.
RecipeKeys kimi_k2(const ModelConfig&, std::int64_t steps) {
  RecipeKeys keys;
  Source code(keys, "Moonlight, examples/toy_train.py"), rule(keys, "arXiv 2507.20534, algorithm 1"),
      report(keys, "arXiv 2507.20534, section 2.5");
  moonlight_products(code);
  rule("optimizer.nesterov", "false")("optimizer.qk_clip", "100")("optimizer.qk_clip_alpha", "0.5");
  report("optimizer.weight_decay", "0.1")("optimizer.scalar.weight_decay", "0.1");
  report("schedule.kind", "\"wsd\"")("schedule.lr", "2e-4")("schedule.warmup_steps", "500");
  report("schedule.min_lr_ratio", "0.1");
  if (steps > 0) report("schedule.decay_steps", std::to_string(share(5.5 / 15.5, steps)));
  return keys;
}

struct Recipe {
  const char* name;
  RecipeKeys (*keys)(const ModelConfig&, std::int64_t steps);
};
constexpr Recipe recipes[] = {{"track3-muon", track3_muon},
                              {"track3-soap-muon", track3_soap_muon},
                              {"nanochat", nanochat},
                              {"moonlight", moonlight},
                              {"kimi-k2", kimi_k2}};

constexpr std::string_view recipe_key = "optimizer.recipe";

// These keys of [optimizer] belong to no kind: each has them all.
constexpr std::string_view of_all_kinds[] = {"kind",     "weight_decay", "qk_clip",       "qk_clip_alpha",
                                             "cautious", "group",        "decay_schedule"};

// Returns whether a deck with this kind has the key.
bool fits_kind(const std::string& key, const std::string& kind_name) {
  constexpr std::string_view optimizer = "optimizer.";
  if (!key.starts_with(optimizer)) return true;
  const std::string name = key.substr(optimizer.size());
  if (std::find(std::begin(of_all_kinds), std::end(of_all_kinds), name) != std::end(of_all_kinds)) return true;
  const MatrixKind* kind = find_matrix_kind(kind_name);
  if (kind == nullptr) return false;  // elementwise, or unknown
  for (const auto& [rule, on] : rules_of({}))
    if (name == rule) return true;
  if (name.starts_with("scalar.")) return true;
  if (name.starts_with("refresh.")) return kind->refresh_every > 0;
  return default_options(*kind).has(name == "momentum_schedule" ? "momentum" : name);
}

std::int64_t length_of(const Deck& deck, const RunOptions& run) {
  const std::string text = deck.given("schedule.steps");
  std::int64_t steps = 0;
  std::from_chars(text.data(), text.data() + text.size(), steps);
  return steps > 0 ? steps : run.steps;
}

}  // namespace

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes) names.emplace_back(recipe.name);
  return names;
}

std::vector<RecipeKey> recipe_keys(const std::string& name, const ModelConfig& model, std::int64_t steps) {
  for (const Recipe& recipe : recipes)
    if (name == recipe.name) return recipe.keys(model, steps);
  fail(ExitCode::internal, "no recipe \"{}\"", name);
}

void lay_recipe(Deck& deck, const RunOptions& run, const ModelConfig& model) {
  const std::string given = deck.given(recipe_key);
  for (const Recipe& recipe : recipes) {
    if (given != fmt::format("\"{}\"", recipe.name)) continue;
    const RecipeKeys keys = recipe.keys(model, length_of(deck, run));
    const std::string chosen = deck.given("optimizer.kind");
    const std::string& kind = chosen.empty() ? keys.front().value : chosen;  // each recipe begins with its kind
    const std::string bare = kind.substr(1, kind.size() - std::min<std::size_t>(2, kind.size()));
    for (const RecipeKey& key : keys)
      if (fits_kind(key.key, bare))
        deck.underlay(key.key, key.value, fmt::format("recipe {} ({})", recipe.name, key.source));
  }
}

}  // namespace sestina

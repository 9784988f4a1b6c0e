#include "core/deck/model_config.hpp"

#include <algorithm>
#include <array>

#include "core/deck/deck.hpp"
#include "core/deck/deck_state.hpp"
#include "core/deck/model_experts.hpp"
#include "core/deck/model_switches.hpp"

namespace sestina {

namespace {

constexpr std::array families{Family::llama, Family::olmo2,     Family::qwen3,
                              Family::gpt,   Family::qwen3_moe, Family::mixtral};
constexpr std::array keys{"preset",
                          "family",
                          "hidden_size",
                          "intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "vocab_size",
                          "max_position_embeddings",
                          "rope_theta",
                          "rope_scaling",
                          "rms_norm_eps",
                          "tie_word_embeddings",
                          "attention_bias",
                          "hidden_act",
                          "initializer_range",
                          "init",
                          "position"};
constexpr DeckRange size_range{.min = 1, .max = 1 << 24};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family f : families) names.emplace_back(name(f));
  return names;
}

std::string at(const char* key) { return std::string("model.") + key; }

void report(Deck& deck, const std::vector<ModelDefect>& found) {
  for (const ModelDefect& defect : found) deck.error(at(defect.key.c_str()), defect.what, defect.allowed);
}

ModelConfig read_hf(Deck& deck) {
  const auto refuse = [&deck](const char* key) {
    if (deck.has(at(key)))
      deck.error(at(key), "conflicts with model.from_hf, which defines the whole model", "model.from_hf alone");
  };
  for (const char* key : keys) refuse(key);
  for (const char* key : switch_keys) refuse(key);
  for (const char* key : expert_keys) refuse(key);
  const std::string folder = deck.path("model.from_hf", "");
  try {
    return ModelConfig::from_hf_folder(folder);
  } catch (const Error& error) {
    if (error.code() == ExitCode::bad_data) throw;  // the fault is not the deck's
    deck.error("model.from_hf", error.what(), "a folder with a config.json of a supported model");
  }
  return preset("llama-8m");  // takes its place until the deck reports its errors
}

// Returns the start for the keys of the deck: a preset, or a family's defaults.
ModelConfig read_base(Deck& deck) {
  if (const auto name = deck.maybe_text("model.preset")) {
    const auto names = preset_names();
    if (std::find(names.begin(), names.end(), *name) != names.end()) return preset(*name);
    deck.error("model.preset", "unknown preset", fmt::format("{}", fmt::join(names, ", ")));
    return preset("llama-8m");
  }
  if (!deck.has("model.family")) {
    deck.error("model", "no model given", "preset, from_hf, or family with its sizes");
    return preset("llama-8m");
  }
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    deck.require(at(key), "a family without a preset has no default sizes");
  const std::string family = deck.choice("model.family", "llama", family_names());
  const auto names = family_names();
  const bool known = std::find(names.begin(), names.end(), family) != names.end();
  return family_defaults(known ? family_of(family) : Family::llama);
}

// Reads sizes, which follow from others where the deck does not give them.
void read_sizes(Deck& deck, const ModelConfig& base, ModelConfig& c) {
  const auto size = [&](const char* key, std::int64_t fallback) {
    return deck.integer(at(key), std::max<std::int64_t>(fallback, 1), size_range);
  };
  c.hidden_size = size("hidden_size", base.hidden_size);
  c.num_hidden_layers = size("num_hidden_layers", base.num_hidden_layers);
  c.num_attention_heads = size("num_attention_heads", base.num_attention_heads);
  c.vocab_size = size("vocab_size", base.vocab_size);
  c.max_position_embeddings = size("max_position_embeddings", base.max_position_embeddings);

  const bool plain_heads = base.num_key_value_heads == base.num_attention_heads;  // also 0 = 0, a family without sizes
  c.num_key_value_heads = size("num_key_value_heads", plain_heads ? c.num_attention_heads : base.num_key_value_heads);
  const bool derived_dim = base.num_attention_heads * base.head_dim == base.hidden_size;
  const bool named_dim = base.family == Family::qwen3 || base.family == Family::qwen3_moe;
  const bool fixed_dim = base.head_dim > 0 && (!derived_dim || named_dim);
  c.head_dim =
      size("head_dim", fixed_dim ? base.head_dim : c.hidden_size / std::max<std::int64_t>(c.num_attention_heads, 1));
  const std::int64_t gated =
      (c.hidden_size * 8 / 3 + 15) / 16 * 16;  // as many weights as two matrices of 4 hidden_size
  const std::int64_t usual = c.gated() ? gated : 4 * c.hidden_size;
  c.intermediate_size = size("intermediate_size", base.intermediate_size > 0 ? base.intermediate_size : usual);
}

void read_rope(Deck& deck, const ModelConfig& base, ModelConfig& c) {
  c.rope_theta = deck.number("model.rope_theta", base.rope_theta, positive);
  c.rope_scaling = base.rope_scaling;
  const std::string table = "model.rope_scaling";
  bool scaled = false;
  for (const char* key :
       {"", ".rope_type", ".factor", ".low_freq_factor", ".high_freq_factor", ".original_max_position_embeddings"})
    scaled = scaled || deck.has(table + key);
  if (!scaled) return;
  RopeScaling s = base.rope_scaling.value_or(RopeScaling{});
  deck.choice(table + ".rope_type", "llama3", {"llama3"});
  s.factor = deck.number(table + ".factor", s.factor, {.min = 1});
  s.low_freq_factor = deck.number(table + ".low_freq_factor", s.low_freq_factor, positive);
  s.high_freq_factor = deck.number(table + ".high_freq_factor", s.high_freq_factor, positive);
  s.original_max_position_embeddings =
      deck.integer(table + ".original_max_position_embeddings", s.original_max_position_embeddings, size_range);
  c.rope_scaling = s;
}

}  // namespace

const char* name(Family family) {
  switch (family) {
    case Family::llama:
      return "llama";
    case Family::olmo2:
      return "olmo2";
    case Family::qwen3:
      return "qwen3";
    case Family::gpt:
      return "gpt";
    case Family::qwen3_moe:
      return "qwen3_moe";
    case Family::mixtral:
      return "mixtral";
  }
  return "?";
}

Family family_of(const std::string& text) {
  for (const Family f : families)
    if (text == name(f)) return f;
  fail(ExitCode::bad_deck, "model.family: unknown family, got \"{}\", allowed {}", text,
       fmt::join(family_names(), ", "));
}

std::vector<std::string> activations_of(Family family) {
  if (family == Family::gpt) return {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu2"};
  return {"silu"};
}

ModelConfig family_defaults(Family family) {
  ModelConfig c;
  c.family = family;
  c.hidden_act = activations_of(family).front();
  c.qk_norm = family == Family::olmo2 || family == Family::qwen3 || family == Family::qwen3_moe;
  c.norm_topk_prob = is_mixture(family);
  if (family == Family::olmo2) {
    c.rope_theta = 5e5;
    c.rms_norm_eps = 1e-6;
  } else if (family == Family::qwen3 || family == Family::qwen3_moe) {
    c.rope_theta = 1e6;
    c.rms_norm_eps = 1e-6;
    c.head_dim = 128;
  } else if (family == Family::mixtral) {
    c.rope_theta = 1e6;
  }
  return c;
}

std::vector<ModelDefect> defects(const ModelConfig& c) {
  std::vector<ModelDefect> found;
  const auto demand = [&](bool holds, const char* key, std::string what, std::string allowed) {
    if (!holds) found.push_back({key, std::move(what), std::move(allowed)});
  };
  demand(c.num_key_value_heads > 0 && c.num_attention_heads % c.num_key_value_heads == 0, "num_key_value_heads",
         fmt::format("{} key/value heads do not divide {} heads", c.num_key_value_heads, c.num_attention_heads),
         "a divisor of num_attention_heads");
  demand(c.head_dim > 0 && c.head_dim % 2 == 0, "head_dim", fmt::format("{} cannot be split into pairs", c.head_dim),
         "a positive even number");
  const auto acts = activations_of(c.family);
  demand(std::find(acts.begin(), acts.end(), c.hidden_act) != acts.end(), "hidden_act",
         fmt::format("\"{}\" is not an activation of family {}", c.hidden_act, name(c.family)),
         fmt::format("{}", fmt::join(acts, ", ")));
  demand(c.family == Family::gpt || c.position == ModelConfig::Position::rope, "position",
         fmt::format("learned positions in family {}", name(c.family)), "rope (learned: family gpt)");
  for (ModelDefect& defect : switch_defects(c)) found.push_back(std::move(defect));
  for (ModelDefect& defect : expert_defects(c)) found.push_back(std::move(defect));
  if (c.rope_scaling)
    demand(c.rope_scaling->low_freq_factor < c.rope_scaling->high_freq_factor, "rope_scaling",
           "low_freq_factor is not below high_freq_factor", "low_freq_factor < high_freq_factor");
  return found;
}

ModelConfig ModelConfig::read(Deck& deck) {
  const LinearOptions linear = LinearOptions::read(deck);
  if (deck.has("model.from_hf")) {
    ModelConfig c = read_hf(deck);
    c.linear = linear;
    return c;
  }
  const ModelConfig base = read_base(deck);
  ModelConfig c = base;
  c.linear = linear;
  if (!base.preset.empty()) deck.choice("model.family", name(base.family), {name(base.family)});
  read_sizes(deck, base, c);
  read_rope(deck, base, c);
  c.rms_norm_eps = deck.number("model.rms_norm_eps", base.rms_norm_eps, {.min = 0, .open_min = true});
  c.tie_word_embeddings = deck.boolean("model.tie_word_embeddings", base.tie_word_embeddings);
  c.attention_bias = deck.boolean("model.attention_bias", base.attention_bias);
  c.hidden_act = deck.choice("model.hidden_act", base.hidden_act, activations_of(c.family));
  c.initializer_range = deck.number("model.initializer_range", base.initializer_range, {.min = 0});
  c.position =
      deck.choice("model.position", "rope", {"rope", "learned"}) == "learned" ? Position::learned : Position::rope;
  read_experts(deck, base, c);
  read_switches(deck, c);
  report(deck, defects(c));
  return c;
}

namespace {

struct Preset {
  const char* name;
  Family family;
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, positions;
  bool tied;
};

// The sizes of llama-60m to 1b are those of GaLore (Zhao et al. 2024); those of 3b, 8b, 13b are from the POET-X paper,
// without grouped queries. olmo2 and qwen3 are the published models; asteria-660m is a GPT with rotary positions.
constexpr std::array presets{
    Preset{"llama-8m", Family::llama, 256, 688, 8, 8, 8, 32, 4096, 1024, false},
    Preset{"llama-60m", Family::llama, 512, 1376, 8, 8, 8, 64, 32000, 1024, false},
    Preset{"llama-130m", Family::llama, 768, 2048, 12, 12, 12, 64, 32000, 1024, false},
    Preset{"llama-134m", Family::llama, 768, 2048, 12, 12, 12, 64, 32000, 1024, false},
    Preset{"llama-350m", Family::llama, 1024, 2736, 24, 16, 16, 64, 32000, 1024, false},
    Preset{"llama-1b", Family::llama, 2048, 5461, 24, 32, 32, 64, 32000, 1024, false},
    Preset{"llama-3b", Family::llama, 2560, 7168, 32, 32, 32, 80, 32000, 2048, false},
    Preset{"llama-8b", Family::llama, 4096, 14336, 32, 32, 32, 128, 32000, 2048, false},
    Preset{"llama-13b", Family::llama, 5120, 13824, 40, 40, 40, 128, 32000, 2048, false},
    Preset{"olmo2-1b", Family::olmo2, 2048, 8192, 16, 16, 16, 128, 100352, 4096, false},
    Preset{"olmo2-7b", Family::olmo2, 4096, 11008, 32, 32, 32, 128, 100352, 4096, false},
    Preset{"qwen3-0.6b", Family::qwen3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, true},
    Preset{"qwen3-1.7b", Family::qwen3, 2048, 6144, 28, 16, 8, 128, 151936, 40960, true},
    Preset{"qwen3-4b", Family::qwen3, 2560, 9728, 36, 32, 8, 128, 151936, 40960, true},
    Preset{"qwen3-8b", Family::qwen3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, false},
    Preset{"qwen3-14b", Family::qwen3, 5120, 17408, 40, 40, 8, 128, 151936, 40960, false},
    Preset{"qwen3-32b", Family::qwen3, 5120, 25600, 64, 64, 8, 128, 151936, 40960, false},
    Preset{"asteria-660m", Family::gpt, 1408, 5632, 24, 22, 22, 64, 32128, 1024, true},
    Preset{"qwen3-30b-a3b", Family::qwen3_moe, 2048, 6144, 48, 32, 4, 128, 151936, 40960, false},
    Preset{"kimi-k2-like", Family::qwen3_moe, 7168, 18432, 61, 64, 8, 128, 163840, 131072, false},
};

struct ExpertPreset {
  const char* name;
  std::int64_t experts, chosen, intermediate, shared;
};

// kimi-k2-like has the sizes of Kimi K2 (2025), but grouped queries in the place of latent attention, a mixture in the
// first layer too, and probabilities from a softmax.
constexpr std::array expert_presets{ExpertPreset{"qwen3-30b-a3b", 128, 8, 768, 0},
                                    ExpertPreset{"kimi-k2-like", 384, 8, 2048, 2048}};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : presets) names.emplace_back(p.name);
  return names;
}

ModelConfig preset(const std::string& name) {
  for (const Preset& p : presets) {
    if (name != p.name) continue;
    ModelConfig c = family_defaults(p.family);
    c.preset = name;
    c.hidden_size = p.hidden;
    c.intermediate_size = p.intermediate;
    c.num_hidden_layers = p.layers;
    c.num_attention_heads = p.heads;
    c.num_key_value_heads = p.kv_heads;
    c.head_dim = p.head_dim;
    c.vocab_size = p.vocabulary;
    c.max_position_embeddings = p.positions;
    c.tie_word_embeddings = p.tied;
    for (const ExpertPreset& e : expert_presets) {
      if (name != e.name) continue;
      c.num_experts = e.experts;
      c.num_experts_per_tok = e.chosen;
      c.moe_intermediate_size = e.intermediate;
      c.shared_expert_intermediate_size = e.shared;
    }
    return c;
  }
  fail(ExitCode::bad_deck, "model.preset: unknown preset, got \"{}\", allowed {}", name,
       fmt::join(preset_names(), ", "));
}

namespace {

constexpr std::string_view scaling_table = "model.rope_scaling.";

}  // namespace

std::vector<std::pair<std::string, std::string>> model_keys(const ModelConfig& c) {
  std::vector<std::pair<std::string, std::string>> keys;
  const auto add = [&](const std::string& key, const auto& value) {
    keys.emplace_back("model." + key, toml_text(value));
  };
  add("family", std::string(name(c.family)));
  add("hidden_size", c.hidden_size);
  add("intermediate_size", c.intermediate_size);
  add("num_hidden_layers", c.num_hidden_layers);
  add("num_attention_heads", c.num_attention_heads);
  add("num_key_value_heads", c.num_key_value_heads);
  add("head_dim", c.head_dim);
  add("vocab_size", c.vocab_size);
  add("max_position_embeddings", c.max_position_embeddings);
  add("rope_theta", c.rope_theta);
  add("rms_norm_eps", c.rms_norm_eps);
  add("tie_word_embeddings", c.tie_word_embeddings);
  add("attention_bias", c.attention_bias);
  add("hidden_act", c.hidden_act);
  add("initializer_range", c.initializer_range);
  add("position", std::string(c.position == ModelConfig::Position::learned ? "learned" : "rope"));
  add_switches(keys, c);
  add_experts(keys, c);
  if (!c.rope_scaling) return keys;
  add("rope_scaling.rope_type", std::string("llama3"));
  add("rope_scaling.factor", c.rope_scaling->factor);
  add("rope_scaling.low_freq_factor", c.rope_scaling->low_freq_factor);
  add("rope_scaling.high_freq_factor", c.rope_scaling->high_freq_factor);
  add("rope_scaling.original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings);
  return keys;
}

std::string model_section(const ModelConfig& c) {
  std::string text = "[model]\n";
  for (const auto& [key, value] : model_keys(c)) {
    if (key.ends_with(".rope_type")) text += "[model.rope_scaling]\n";  // the first key of the table, which comes last
    const std::string_view table = key.starts_with(scaling_table) ? scaling_table : "model.";
    text += fmt::format("{} = {}\n", key.substr(table.size()), value);
  }
  return text;
}

void record_model(Deck& deck, const ModelConfig& c) {
  if (deck.has("model.from_hf")) deck.record_keys("model.from_hf", model_keys(c));
}

}  // namespace sestina

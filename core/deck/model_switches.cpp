#include "core/deck/model_switches.hpp"

#include <cmath>

#include "core/deck/deck.hpp"
#include "core/deck/deck_state.hpp"

namespace sestina {
namespace {

// Returns the inputs of a weight with this role.
std::int64_t inputs_of(const ModelConfig& c, InitRole role) {
  const std::int64_t inner = c.has_experts() ? c.moe_intermediate_size : c.intermediate_size;
  return role == InitRole::o ? c.query_width() : role == InitRole::down ? inner : c.hidden_size;
}

// Reads [model.init]: a standard deviation for each role, or "fan_in", that of PyTorch's uniform linear layers.
void read_init(Deck& deck, ModelConfig& c) {
  for (std::size_t i = 0; i < c.init.size(); ++i) {
    const std::string key = fmt::format("model.init.{}", init_role_names[i]);
    if (deck.given(key) == "\"fan_in\"") {
      deck.text(key, "");
      c.init[i] = 1 / std::sqrt(3 * static_cast<double>(inputs_of(c, static_cast<InitRole>(i))));
    } else {
      c.init[i] = deck.maybe_number(key, not_negative);
    }
  }
}

}  // namespace

void read_switches(Deck& deck, ModelConfig& c) {
  read_init(deck, c);
  using Norm = ModelConfig::Norm;
  using Form = ModelConfig::SoftcapForm;
  const bool gpt = c.family == Family::gpt;
  const std::vector<std::string> norms =
      gpt ? std::vector<std::string>{"layernorm", "rmsnorm"} : std::vector<std::string>{"rmsnorm"};
  c.norm = deck.choice("model.norm", norms.front(), norms) == "rmsnorm" ? Norm::rmsnorm : Norm::layernorm;
  c.norm_gain = deck.boolean("model.norm_gain", true);
  c.qk_norm = deck.boolean("model.qk_norm", c.qk_norm);
  c.qk_norm_gain = deck.boolean("model.qk_norm_gain", true);
  c.embedding_norm = deck.boolean("model.embedding_norm", false);
  c.partial_rotary_factor = deck.number("model.partial_rotary_factor", 1, {.min = 0, .max = 1, .open_min = true});
  c.attention_multiplier = deck.number("model.attention_multiplier", 0, not_negative);
  c.final_logit_softcapping = deck.number("model.final_logit_softcapping", 0, not_negative);
  c.softcapping_form =
      deck.choice("model.softcapping_form", "tanh", {"tanh", "root"}) == "root" ? Form::root : Form::tanh;
  c.head_bias = deck.boolean("model.head_bias", false);
}

double ModelConfig::attention_scale() const {
  return attention_multiplier > 0 ? attention_multiplier : 1 / std::sqrt(static_cast<double>(head_dim));
}

std::int64_t ModelConfig::turning_pairs() const {
  return std::llround(partial_rotary_factor * static_cast<double>(head_dim) / 2);
}

std::vector<ModelDefect> switch_defects(const ModelConfig& c) {
  std::vector<ModelDefect> found;
  const auto demand = [&](bool holds, const char* key, const char* what, const char* allowed) {
    if (!holds) found.push_back({key, what, allowed});
  };
  const bool gpt = c.family == Family::gpt, rope = c.position == ModelConfig::Position::rope;
  constexpr const char* of_gpt = "a switch of family gpt";
  demand(gpt || c.qk_norm == c.query_norms(), "qk_norm",
         "q and k have norms in qwen3, qwen3_moe and olmo2, not in others", "as the family has it (gpt: either)");
  demand(gpt || c.norm_gain, "norm_gain", of_gpt, "true");
  demand(gpt || c.qk_norm_gain, "qk_norm_gain", of_gpt, "true");
  demand(gpt || !c.embedding_norm, "embedding_norm", of_gpt, "false");
  demand(gpt || c.partial_rotary_factor == 1, "partial_rotary_factor", of_gpt, "1");
  demand(gpt || c.attention_multiplier == 0, "attention_multiplier", of_gpt, "0");
  demand(gpt || c.final_logit_softcapping == 0, "final_logit_softcapping", of_gpt, "0");
  demand(gpt || !c.head_bias, "head_bias", of_gpt, "false");
  const auto in_blocks = [&](InitRole role) { return role != InitRole::embed && role != InitRole::head; };
  for (std::size_t i = 0; i < c.init.size(); ++i)
    demand(c.linear.is_dense() || !c.init[i] || !in_blocks(static_cast<InitRole>(i)), "init",
           "frozen weights begin as model.initializer_range says", "embed and head alone, or model.linear.form dense");
  demand(c.norm_gain || !c.layer_norms(), "norm_gain", "a LayerNorm has weights", "true, or norm = \"rmsnorm\"");
  if (c.partial_rotary_factor == 1) return found;
  demand(rope, "partial_rotary_factor", "positions are learned", "1, or position = \"rope\"");
  demand(!c.rope_scaling, "partial_rotary_factor", "conflicts with rope_scaling", "1");
  demand(c.turning_pairs() > 1, "partial_rotary_factor", "leaves fewer than two pairs of a head that turn",
         "4 / head_dim to 1");
  return found;
}

void add_switches(std::vector<std::pair<std::string, std::string>>& keys, const ModelConfig& c) {
  const auto add = [&](const std::string& key, const auto& value) {
    keys.emplace_back("model." + key, toml_text(value));
  };
  add("norm", std::string(c.layer_norms() ? "layernorm" : "rmsnorm"));
  add("norm_gain", c.norm_gain);
  add("qk_norm", c.qk_norm);
  add("qk_norm_gain", c.qk_norm_gain);
  add("embedding_norm", c.embedding_norm);
  add("partial_rotary_factor", c.partial_rotary_factor);
  add("attention_multiplier", c.attention_multiplier);
  add("final_logit_softcapping", c.final_logit_softcapping);
  add("softcapping_form", std::string(c.softcapping_form == ModelConfig::SoftcapForm::root ? "root" : "tanh"));
  add("head_bias", c.head_bias);
}

}  // namespace sestina

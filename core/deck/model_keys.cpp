#include "core/deck/model_keys.hpp"

#include "core/deck/deck.hpp"
#include "core/deck/deck_state.hpp"

namespace sestina {
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
    if (key.ends_with(".rope_type")) text += "[model.rope_scaling]\n";  // the first of the table, which comes last
    const std::string_view table = key.starts_with(scaling_table) ? scaling_table : "model.";
    text += fmt::format("{} = {}\n", key.substr(table.size()), value);
  }
  return text;
}

void record_model(Deck& deck, const ModelConfig& c) {
  if (deck.has("model.from_hf")) deck.record_keys("model.from_hf", model_keys(c));
}

}  // namespace sestina

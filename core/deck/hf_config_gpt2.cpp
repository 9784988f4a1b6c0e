// GPT-2 in config.json: transformers' GPT2Config has its own words for the sizes. What it can say of a gpt of ours:
// learned positions, a bias on every product, as many key and value heads as heads, heads that make up the hidden size.
#include "core/deck/hf_config_reader.hpp"

namespace sestina {

std::string gpt2_difference(const ModelConfig& c) {
  if (c.family != Family::gpt) return fmt::format("family is {}, not gpt", name(c.family));
  if (c.position != ModelConfig::Position::learned) return "position is rope, GPT-2 has learned positions";
  if (!c.attention_bias) return "attention_bias is false, GPT-2 has biases";
  if (c.num_key_value_heads != c.num_attention_heads)
    return fmt::format("{} key/value heads for {} heads, GPT-2 has as many", c.num_key_value_heads,
                       c.num_attention_heads);
  if (c.head_dim * c.num_attention_heads != c.hidden_size)
    return fmt::format("{} heads of {} are not hidden_size {}", c.num_attention_heads, c.head_dim, c.hidden_size);
  return "";
}

namespace {

// GPT2Config's other name of a key, which wins where both are there.
std::int64_t either(const HfReader& in, const char* key, const char* other, std::int64_t fallback) {
  return in.size(other, in.size(key, fallback));
}

}  // namespace

ModelConfig read_gpt2_config(const HfReader& in) {
  ModelConfig c = family_defaults(Family::gpt), of_class;
  of_class.bos_token_id = of_class.eos_token_id = 50256;
  c.hidden_size = either(in, "n_embd", "hidden_size", 768);
  c.intermediate_size = in.size("n_inner", 4 * c.hidden_size);
  c.num_hidden_layers = either(in, "n_layer", "num_hidden_layers", 12);
  c.num_attention_heads = c.num_key_value_heads = either(in, "n_head", "num_attention_heads", 12);
  c.head_dim = c.hidden_size / c.num_attention_heads;
  if (c.head_dim * c.num_attention_heads != c.hidden_size)
    in.reject("n_head", c.num_attention_heads, fmt::format("a divisor of n_embd = {}", c.hidden_size));
  c.vocab_size = in.size("vocab_size", 50257);
  c.max_position_embeddings = either(in, "n_positions", "max_position_embeddings", 1024);
  c.rms_norm_eps = in.number("layer_norm_epsilon", 1e-5, least_eps);
  c.hidden_act = in.text("activation_function", "gelu_new");
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", true);
  c.initializer_range = in.number("initializer_range", c.initializer_range);
  c.attention_bias = true;
  c.position = ModelConfig::Position::learned;
  read_token_ids(in, of_class, c);
  return c;
}

nlohmann::ordered_json gpt2_json(const ModelConfig& c) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", c.hidden_size},
          {"n_inner", c.intermediate_size},
          {"n_layer", c.num_hidden_layers},
          {"n_head", c.num_attention_heads},
          {"n_positions", c.max_position_embeddings},
          {"vocab_size", c.vocab_size},
          {"activation_function", c.hidden_act},
          {"layer_norm_epsilon", c.rms_norm_eps},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"initializer_range", c.initializer_range},
          // There is no dropout here.
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

}  // namespace sestina

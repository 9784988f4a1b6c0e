// The sizes of a model, in HF's words, with presets (shared sizes of the field) and config.json both ways. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/deck/linear_options.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

class Deck;

struct RopeScaling {  // Llama 3 frequency scaling (HF rope_type "llama3")
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

enum class Family { llama, olmo2, qwen3, gpt };

struct ModelConfig {
  Family family = Family::llama;
  std::string preset;   // name, when it came from one
  std::string from_hf;  // folder with config.json and weights, when it came from one
  std::int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0, num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // default: num_attention_heads
  std::int64_t head_dim = 0;             // default: hidden_size / num_attention_heads
  std::int64_t vocab_size = 0, max_position_embeddings = 1024;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  double rms_norm_eps = 1e-5;  // also LayerNorm's eps in family gpt
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // biases of q, k, v, o; in family gpt of all products
  std::string hidden_act;       // "silu" (llama, olmo2, qwen3); "gelu", "gelu_new" (gpt)
  double initializer_range = 0.02;
  enum class Position { rope, learned } position = Position::rope;       // learned: gpt only
  LinearOptions linear;                                                  // form of the weights inside blocks
  std::int64_t bos_token_id = -1, eos_token_id = -1, pad_token_id = -1;  // -1 = none

  std::int64_t query_width() const { return num_attention_heads * head_dim; }
  std::int64_t key_value_width() const { return num_key_value_heads * head_dim; }
  bool query_norms() const { return family == Family::qwen3 || family == Family::olmo2; }  // of q and k
  bool gated() const { return family != Family::gpt; }  // SwiGLU (gate, up, down) or GELU (up, down)

  static ModelConfig read(Deck&);  // [model]: preset, from_hf or family + sizes
  // config.json, old and new rope keys. Error(bad_data) on what is missing, impossible or not implemented.
  static ModelConfig from_hf_json(const std::string& text, const std::string& where);
  static ModelConfig from_hf_folder(const std::string& folder);  // its config.json; Error(input_missing) without one
  std::string hf_tokenizer() const;  // tokenizer.json in the folder of from_hf, "" when there is none
  std::string to_hf_json() const;    // what transformers loads; gpt as GPT-2 or not at all
};
// What keeps a model from being a GPT-2, "" nothing: it is exported as one, else transformers knows no class for a gpt.
std::string gpt2_difference(const ModelConfig&);
// The defaults of a family; sizes are 0.
ModelConfig family_defaults(Family);
Family family_of(const std::string& name);        // throws Error(bad_deck) with the allowed names
std::vector<std::string> activations_of(Family);  // allowed values of hidden_act
// What does not fit together, empty when all does: (key, what, allowed).
struct ModelDefect {
  std::string key, what, allowed;
};
std::vector<ModelDefect> defects(const ModelConfig&);

std::vector<std::string> preset_names();
ModelConfig preset(const std::string& name);  // throws Error(bad_deck) with the allowed names
const char* name(Family);

}  // namespace sestina

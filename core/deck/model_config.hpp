// The description of a model: its sizes in HF's words, with presets (shared sizes of the field) and config.json both
// ways; [model.linear]; and the keys that a run stores. No Kokkos.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

// [model.linear] says in which form the weights of the linear layers inside blocks are kept and trained. A form is a
// row of the table in core/layout/weight_form.hpp; `dense` is none.
class Deck;
struct ModelConfig;
struct ModelDefect;
struct Options;

struct LinearOptions {
  std::string form = "dense";

  // poet-x
  enum class Variant { fast, mem, xq } variant = Variant::fast;  // keeps c; makes it again; and its base in codes
  std::int64_t block_size = 256, merge_every = 200;              // updates between merges
  // sampling = "fully-stochastic": of each side of a weight (of each of its shards) one block is trained, on block_size
  // of its rows or columns that each merge draws; else the blocks together hold all of them.
  bool one_block = false;
  bool staggered = false;  // merge_phase: layer l merges at updates t with (t + l) mod merge_every = 0, not all at once
  // The ||Q||_2 of a rotation above which its layer is merged early (0: never), and the updates from one look to the
  // next.
  double merge_bound = 0;
  std::int64_t merge_bound_every = 10;
  bool residual = false;  // the base in bf16 or in codes has a byte next to each one, for what merges would round away
  // Parts of the side that tensor parallelism cuts; no permutation and no block of a rotation leaves its part. The
  // model of one rank has its own parts, and the number of the first of them among all.
  std::int64_t shards = 1, first_shard = 0;
  bool even = false;       // cnp = "even"
  double lr_factor = 0.5;  // factor on the learning rate of the rotations
  int state_bits = 32;     // bits of AdamW's moments of the rotations
  enum class Init { normalized, gaussian, uniform_spectrum } init = Init::normalized;
  int base_bits = 8;              // of a code (xq), 8 or 4
  std::int64_t group_size = 256;  // weights that share a scale (xq)
  bool zero_in_range = true;      // the range of their codes includes 0; false: the published rule
  bool dense_if_indivisible = false;
  bool eps_on_corrected = true;                               // false, as published: added to the uncorrected root
  std::int64_t clip_warmup_steps = 0, clip_warmup_until = 0;  // updates after a merge; last update that has a warm-up
  double clip_start_ratio = 0;                                // part of train.clip_norm, right after a merge

  // lora
  std::int64_t rank = 8;
  double alpha = 16;

  bool is_dense() const { return form == "dense"; }
  static LinearOptions read(Deck&);
};

// Returns what keeps the weights of this model from their form; keys are those of [model]. Empty when nothing does.
std::vector<ModelDefect> linear_defects(const ModelConfig&);
// Reads the keys whose defaults follow from other sections, after these: model.linear.shards, whose default is
// parallel.tp, model.linear.merge_residual, which is for bf16 and codes, and model.linear.state_bits, for AdamW.
void read_with_others(Deck&, Options&);
// Collects errors for the parts of a deck that do not fit the form.
void require_form_fits(Deck&, const Options&);
void require_rotations(Deck&, const Options&);  // refuses to measure rotations where there are none

// Returns the clipping threshold of update t (from 1): train.clip_norm, except for the first updates after a merge,
// where it rises linearly from clip_start_ratio of it.
double clip_norm_at(const LinearOptions&, double clip_norm, std::int64_t t);

// The sizes of a model, in HF's words, with presets (shared sizes of the field) and config.json both ways.
class Deck;

struct RopeScaling {  // Llama 3 frequency scaling (HF rope_type "llama3")
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::int64_t original_max_position_embeddings = 8192;
};

enum class Family { llama, olmo2, qwen3, gpt, qwen3_moe, mixtral };

// Weights that may begin with a range of their own, in the order of the keys of [model.init]; up: gate, too.
enum class InitRole : std::uint8_t { embed, q, k, v, o, up, down, head };
inline constexpr std::array<const char*, 8> init_role_names = {"embed", "q", "k", "v", "o", "up", "down", "head"};

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
  std::string hidden_act;       // "silu" (llama, olmo2, qwen3); "gelu", "gelu_new", "relu2" (gpt)
  double initializer_range = 0.02;
  // Standard deviations of first weights by InitRole; empty: initializer_range.
  std::array<std::optional<double>, init_role_names.size()> init = {};
  enum class Position { rope, learned } position = Position::rope;  // learned: gpt only
  // Switches of family gpt.
  enum class Norm { layernorm, rmsnorm } norm = Norm::layernorm;  // of the residual stream
  bool norm_gain = true;                                          // false: rmsnorm without weights
  bool qk_norm = false, qk_norm_gain = true;                      // RMSNorm of each head of q and k; with weights
  bool embedding_norm = false;                                    // a norm after the embedding, like the others
  double partial_rotary_factor = 1;  // share of the pairs of a head that turn (core/model/rope_table.hpp)
  double attention_multiplier = 0;   // factor of the attention scores; 0: head_dim^-1/2
  // Bound c of the logits z; 0: none. tanh: c tanh(z / c) (Gemma 2); root: c z (z^2 + c^2)^-1/2 (modded-nanogpt).
  double final_logit_softcapping = 0;
  enum class SoftcapForm { tanh, root } softcapping_form = SoftcapForm::tanh;
  bool head_bias = false;
  LinearOptions linear;                                                  // form of the weights inside blocks
  std::int64_t bos_token_id = -1, eos_token_id = -1, pad_token_id = -1;  // -1 = none
  // Mixtures of experts: qwen3_moe, mixtral (whose intermediate_size is moe_intermediate_size). Every layer is one.
  std::int64_t num_experts = 0, num_experts_per_tok = 0;  // 0: no mixture
  std::int64_t moe_intermediate_size = 0;                 // of each expert
  std::int64_t shared_expert_intermediate_size = 0;       // of an expert that takes every token; 0: none
  bool norm_topk_prob = false;                            // the chosen probabilities of a token sum to 1
  double router_aux_loss_coef = 0;                        // of the load-balancing loss
  double router_z_loss_coef = 0;                          // of the mean squared log-sum-exp of router logits
  // Scores of a router's logits: probabilities of all experts together, or one of each by itself.
  enum class RouterScore { softmax, sigmoid } router_score = RouterScore::softmax;
  double router_bias_rate = 0;  // step of the biases of its choices; 0: it has none (core/optimizer/router_bias.hpp)
  std::int64_t router_bias_until = 0;  // last update that moves them; 0: all do

  std::int64_t query_width() const { return num_attention_heads * head_dim; }
  std::int64_t key_value_width() const { return num_key_value_heads * head_dim; }
  bool has_experts() const { return num_experts > 0; }
  bool head_norms() const {  // of q, k by head
    return family == Family::qwen3 || family == Family::qwen3_moe || (family == Family::gpt && qk_norm);
  }
  bool query_norms() const { return head_norms() || family == Family::olmo2; }  // whether q and k have norms
  bool layer_norms() const { return family == Family::gpt && norm == Norm::layernorm; }
  bool gated() const { return family != Family::gpt; }  // SwiGLU (gate, up, down), or (up, down)
  double attention_scale() const;
  std::int64_t turning_pairs() const;  // of a head, with rotary positions

  static ModelConfig read(Deck&);  // [model]: preset, from_hf or family + sizes
  // Reads config.json, with old and new rope keys. Error(bad_data) on what is missing, impossible or not implemented.
  static ModelConfig from_hf_json(const std::string& text, const std::string& where);
  static ModelConfig from_hf_folder(const std::string& folder);  // its config.json; Error(input_missing) without one
  std::string hf_tokenizer() const;  // tokenizer.json in the folder of from_hf, "" when there is none
  std::string to_hf_json() const;    // config.json that transformers loads; a gpt is a GPT-2 or cannot be exported
};
// Returns why a gpt is no GPT-2, or "" if it is: then it is exported as one; transformers has no class for another gpt.
std::string gpt2_difference(const ModelConfig&);
// Returns the defaults of a family; sizes are 0.
ModelConfig family_defaults(Family);
Family family_of(const std::string& name);        // throws Error(bad_deck) with the allowed names
std::vector<std::string> activations_of(Family);  // allowed values of hidden_act
// One thing that does not fit in a model: (key, what, allowed).
struct ModelDefect {
  std::string key, what, allowed;
};
std::vector<ModelDefect> defects(const ModelConfig&);

std::vector<std::string> preset_names();
ModelConfig preset(const std::string& name);  // throws Error(bad_deck) with the allowed names
const char* name(Family);

// The keys of [model] that describe a configuration, whatever it was read from: a run stores them in the place of a
// folder's path, since the folder may change or go.
class Deck;

// Returns "model.hidden_size" and so on with values as TOML; a deck with these alone reads back to the same sizes.
std::vector<std::pair<std::string, std::string>> model_keys(const ModelConfig&);
std::string model_section(const ModelConfig&);  // model_keys as text

// Makes the record of a deck with model.from_hf, which dump() gives, hold the keys instead.
void record_model(Deck&, const ModelConfig&);

}  // namespace sestina

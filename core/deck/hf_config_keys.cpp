// Every key that a config.json may have, in three tables: those that are read, those that are refused unless at the
// value that means nothing, those that are known to have no effect on the loss. A key in none of them is refused: it
// may belong to another model. The keys are those of the configuration classes of transformers 4.57 and 5, those that
// older releases wrote, and those in folders of the hub.
#include <algorithm>
#include <initializer_list>
#include <span>

#include "core/deck/hf_config_reader.hpp"
#include "core/deck/model_switches.hpp"

namespace sestina {
namespace {

using Key = const char*;

constexpr Key read_by_all[] = {"model_type",   "vocab_size",   "tie_word_embeddings", "initializer_range",
                               "bos_token_id", "eos_token_id", "pad_token_id"};
constexpr Key read_with_rope[] = {"hidden_size",
                                  "intermediate_size",
                                  "num_hidden_layers",
                                  "num_attention_heads",
                                  "num_key_value_heads",
                                  "head_dim",
                                  "max_position_embeddings",
                                  "rms_norm_eps",
                                  "hidden_act",
                                  "attention_bias",
                                  "layer_types",
                                  "rope_theta",
                                  "rope_scaling",
                                  "rope_parameters",
                                  "original_max_position_embeddings"};
constexpr Key read_by_sestina_gpt[] = {"position"};  // and the switches
constexpr Key read_by_mixtures[] = {"num_experts_per_tok", "router_aux_loss_coef", "output_router_logits"};
constexpr Key read_by_qwen3_moe[] = {"num_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob"};
constexpr Key read_by_sestina_moe[] = {"shared_expert_intermediate_size", "router_score", "router_bias_rate"};
constexpr Key read_by_mixtral[] = {"num_local_experts"};
constexpr Key read_by_gpt2[] = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions", "activation_function",
                                "layer_norm_epsilon",
                                // GPT2Config knows these by two names
                                "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"};
// These keys may be null, which means something else than their absence, or the same.
constexpr Key may_be_null[] = {"n_inner",      "rope_scaling", "rope_parameters", "original_max_position_embeddings",
                               "bos_token_id", "eos_token_id", "pad_token_id",    "num_key_value_heads"};

struct NeutralKey {
  Key key, values;  // a JSON list
};
constexpr NeutralKey neutral_for_all[] = {
    {"add_cross_attention", "[false, null]"}, {"cross_attention_hidden_size", "[null]"},
    {"is_encoder_decoder", "[false, null]"},  {"is_causal", "[true, null]"},
    {"pruned_heads", "[{}, null]"},           {"per_layer_config", "[{}, null]"},
    {"quantization_config", "[null]"},        {"compression_config", "[null]"}};
constexpr NeutralKey neutral_with_rope[] = {
    {"attention_dropout", "[0, null]"},      {"mlp_bias", "[false, null]"},
    {"use_sliding_window", "[false, null]"}, {"partial_rotary_factor", "[1, null]"},
    {"rope_interleaved", "[false, null]"},   {"clip_qkv", "[null]"}};
constexpr NeutralKey neutral_without_windows[] = {{"sliding_window", "[null]"}};
// Every layer is a mixture.
constexpr NeutralKey neutral_for_qwen3_moe[] = {{"decoder_sparse_step", "[1]"}, {"mlp_only_layers", "[[], null]"}};
constexpr NeutralKey neutral_for_mixtral[] = {{"router_jitter_noise", "[0, null]"}};
constexpr NeutralKey neutral_for_gpt2[] = {{"scale_attn_weights", "[true]"},
                                           {"scale_attn_by_inverse_layer_idx", "[false]"}};

// These keys are of transformers' base class: storage, bookkeeping, other heads than a language model's.
constexpr Key no_effect_base[] = {"_attn_implementation",
                                  "_attn_implementation_autoset",
                                  "_attn_implementation_internal",
                                  "_commit_hash",
                                  "_experts_implementation_internal",
                                  "_flash_attn_2_enabled",
                                  "_from_model_config",
                                  "_name_or_path",
                                  "_num_labels",
                                  "architectures",
                                  "attn_implementation",
                                  "auto_map",  // names code that neither transformers nor this program runs unasked
                                  "chunk_size_feed_forward",
                                  "classifier_dropout",
                                  "custom_pipelines",
                                  "decoder_start_token_id",
                                  "dtype",
                                  "experts_implementation",
                                  "finetuning_task",
                                  "gradient_checkpointing",
                                  "id2label",
                                  "is_decoder",
                                  "is_llama_config",
                                  "keys_to_ignore_at_inference",
                                  "label2id",
                                  "max_sequence_length",
                                  "model_max_length",
                                  "name_or_path",
                                  "num_labels",
                                  "output_attentions",
                                  "output_hidden_states",
                                  "output_past",
                                  "prefix",
                                  "pretraining_tp",  // how products were cut, not what they are
                                  "problem_type",
                                  "return_dict",
                                  "sep_token_id",
                                  "task_specific_params",
                                  "tf_legacy_loss",
                                  "tie_encoder_decoder",
                                  "tie_last_hidden_states",
                                  "tokenizer_class",
                                  "torch_dtype",
                                  "torchscript",
                                  "transformers.js_config",
                                  "transformers_version",
                                  "unsloth_fixed",
                                  "unsloth_version",
                                  "use_bfloat16",
                                  "use_cache",
                                  "use_return_dict",
                                  "xla_device"};
// These keys are of generation, which older releases kept here.
constexpr Key no_effect_generation[] = {"bad_words_ids",
                                        "begin_suppress_tokens",
                                        "cache_implementation",
                                        "diversity_penalty",
                                        "do_sample",
                                        "early_stopping",
                                        "encoder_no_repeat_ngram_size",
                                        "epsilon_cutoff",
                                        "eta_cutoff",
                                        "exponential_decay_length_penalty",
                                        "force_words_ids",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "guidance_scale",
                                        "length_penalty",
                                        "low_memory",
                                        "max_length",
                                        "max_new_tokens",
                                        "max_time",
                                        "min_length",
                                        "min_new_tokens",
                                        "min_p",
                                        "no_repeat_ngram_size",
                                        "num_beam_groups",
                                        "num_beams",
                                        "num_return_sequences",
                                        "output_scores",
                                        "penalty_alpha",
                                        "remove_invalid_values",
                                        "renormalize_logits",
                                        "repetition_penalty",
                                        "return_dict_in_generate",
                                        "sequence_bias",
                                        "stop_strings",
                                        "suppress_tokens",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "typical_p",
                                        "watermarking_config"};
// These have no effect without use_sliding_window.
constexpr Key no_effect_qwen3[] = {"sliding_window", "max_window_layers"};
// These are for dropout, which this program does not have, classification heads, and precision.
constexpr Key no_effect_gpt2[] = {"attn_pdrop",
                                  "embd_pdrop",
                                  "resid_pdrop",
                                  "n_ctx",
                                  "n_special",
                                  "predict_special_tokens",
                                  "reorder_and_upcast_attn",
                                  "summary_activation",
                                  "summary_first_dropout",
                                  "summary_proj_to_labels",
                                  "summary_type",
                                  "summary_use_proj"};

bool among(const std::string& key, std::initializer_list<std::span<const Key>> tables) {
  return std::any_of(tables.begin(), tables.end(), [&](const auto& table) {
    return std::any_of(table.begin(), table.end(), [&](Key known) { return key == known; });
  });
}

const NeutralKey* find_neutral(const std::string& key, std::initializer_list<std::span<const NeutralKey>> tables) {
  for (const auto& table : tables)
    for (const NeutralKey& neutral : table)
      if (key == neutral.key) return &neutral;
  return nullptr;
}

void require_neutral(const HfReader& in, const NeutralKey& neutral, const nlohmann::ordered_json& value) {
  const auto allowed = nlohmann::ordered_json::parse(neutral.values);
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  std::string words;
  for (const auto& one : allowed) words += (words.empty() ? "" : " or ") + one.dump();
  in.reject(neutral.key, value, words + " (not implemented)");
}

}  // namespace

void check_hf_keys(const HfReader& in, const std::string& type) {
  const bool gpt2 = type == "gpt2", moe = type == "qwen3_moe" || type == "sestina_moe", mixtral = type == "mixtral",
             ours = type == "sestina_gpt", qwen3 = type == "qwen3" || moe;
  using Keys = std::span<const Key>;
  using Neutral = std::span<const NeutralKey>;
  for (const auto& [key, value] : in.object().items()) {
    if (among(key,
              {read_by_all, gpt2 ? Keys(read_by_gpt2) : Keys(read_with_rope), ours ? Keys(read_by_sestina_gpt) : Keys(),
               ours ? Keys(switch_keys) : Keys(), moe || mixtral ? Keys(read_by_mixtures) : Keys(),
               moe ? Keys(read_by_qwen3_moe) : Keys(), mixtral ? Keys(read_by_mixtral) : Keys(),
               type == "sestina_moe" ? Keys(read_by_sestina_moe) : Keys()})) {
      const bool null_head = key == "head_dim" && !qwen3 && type != "olmo2";  // hidden_size / num_attention_heads
      if (value.is_null() && !null_head && !among(key, {may_be_null})) in.reject(key.c_str(), value, "a value");
      continue;
    }
    if (among(key, {no_effect_base, no_effect_generation, qwen3 ? Keys(no_effect_qwen3) : Keys(),
                    gpt2 ? Keys(no_effect_gpt2) : Keys()}))
      continue;
    const NeutralKey* neutral =
        find_neutral(key, {neutral_for_all, gpt2 ? Neutral(neutral_for_gpt2) : Neutral(neutral_with_rope),
                           gpt2 || qwen3 ? Neutral() : Neutral(neutral_without_windows),
                           moe       ? Neutral(neutral_for_qwen3_moe)
                           : mixtral ? Neutral(neutral_for_mixtral)
                                     : Neutral()});
    if (neutral == nullptr)
      in.reject(key.c_str(), value, fmt::format("no key of this name: it is not one of a {} model", type));
    require_neutral(in, *neutral, value);
  }
}

}  // namespace sestina

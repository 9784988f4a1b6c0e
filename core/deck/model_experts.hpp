// The keys of [model] for mixtures of experts, in decks and in config.json of Hugging Face transformers. No Kokkos.
#pragma once
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/deck/model_config.hpp"

namespace sestina {

class HfReader;

inline constexpr std::array expert_keys{
    "num_experts",      "num_experts_per_tok",  "moe_intermediate_size", "shared_expert_intermediate_size",
    "norm_topk_prob",   "router_aux_loss_coef", "router_z_loss_coef",    "router_score",
    "router_bias_rate", "router_bias_until"};

// Returns whether every layer of the family is a mixture.
bool is_mixture(Family);
// Reads the keys; a family without experts has none of them. Family and other sizes must have been read.
void read_experts(Deck&, const ModelConfig& base, ModelConfig&);
std::vector<ModelDefect> expert_defects(const ModelConfig&);
// Adds the keys that a run stores, with values as TOML; none without experts.
void add_experts(std::vector<std::pair<std::string, std::string>>& keys, const ModelConfig&);

// config.json: Qwen3MoeConfig says num_experts and moe_intermediate_size, MixtralConfig num_local_experts and
// intermediate_size. transformers adds the load-balancing loss only with output_router_logits = true: without it the
// coefficient is 0. No class of transformers has a mixture of ours with a shared expert, with other scores than softmax
// or with biases of the choice: its folder says sestina_moe.
void read_hf_experts(const HfReader&, ModelConfig&);
void write_hf_experts(const ModelConfig&, nlohmann::ordered_json&);
// Returns why no class of transformers has this model, or "".
std::string mixture_difference(const ModelConfig&);

}  // namespace sestina

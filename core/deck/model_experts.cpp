#include "core/deck/model_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/deck/deck.hpp"
#include "core/deck/deck_state.hpp"
#include "core/deck/hf_config_reader.hpp"

namespace sestina {
namespace {

constexpr std::int64_t most_experts = 4096;

using RouterScore = ModelConfig::RouterScore;
constexpr const char *by_softmax = "softmax", *by_sigmoid = "sigmoid";
std::string score_name(RouterScore score) { return score == RouterScore::sigmoid ? by_sigmoid : by_softmax; }
RouterScore score_of(const std::string& name) {
  return name == by_sigmoid ? RouterScore::sigmoid : RouterScore::softmax;
}

void read_expert_sizes(Deck& deck, const ModelConfig& base, ModelConfig& c) {
  const auto size = [&](const char* key, std::int64_t fallback, DeckRange range) {
    return deck.integer(std::string("model.") + key, fallback, range);
  };
  constexpr double widest = 1 << 24;
  if (base.preset.empty()) {
    for (const char* key : {"num_experts", "num_experts_per_tok"})
      deck.require(std::string("model.") + key, "a family without a preset has no default sizes");
    if (c.family == Family::qwen3_moe)
      deck.require("model.moe_intermediate_size", "a family without a preset has no default sizes");
  }
  c.num_experts = size("num_experts", std::max<std::int64_t>(base.num_experts, 1), {.min = 1, .max = most_experts});
  c.num_experts_per_tok =
      size("num_experts_per_tok", std::max<std::int64_t>(base.num_experts_per_tok, 1), {.min = 1, .max = most_experts});
  c.moe_intermediate_size =
      size("moe_intermediate_size", base.moe_intermediate_size > 0 ? base.moe_intermediate_size : c.intermediate_size,
           {.min = 1, .max = widest});
  c.shared_expert_intermediate_size =
      size("shared_expert_intermediate_size", base.shared_expert_intermediate_size, {.min = 0, .max = widest});
}

}  // namespace

bool is_mixture(Family family) { return family == Family::qwen3_moe || family == Family::mixtral; }

void read_experts(Deck& deck, const ModelConfig& base, ModelConfig& c) {
  if (!is_mixture(c.family)) {
    for (const char* key : expert_keys)
      if (deck.has(std::string("model.") + key))
        deck.error(std::string("model.") + key, fmt::format("family {} has no experts", name(c.family)),
                   "a key of families qwen3_moe and mixtral");
    return;
  }
  read_expert_sizes(deck, base, c);
  c.norm_topk_prob = deck.boolean("model.norm_topk_prob", base.norm_topk_prob);
  c.router_aux_loss_coef = deck.number("model.router_aux_loss_coef", base.router_aux_loss_coef, not_negative);
  c.router_z_loss_coef = deck.number("model.router_z_loss_coef", base.router_z_loss_coef, not_negative);
  c.router_score = score_of(deck.choice("model.router_score", score_name(base.router_score), {by_softmax, by_sigmoid}));
  c.router_bias_rate = deck.number("model.router_bias_rate", base.router_bias_rate, not_negative);
  c.router_bias_until = deck.integer("model.router_bias_until", 0, not_negative);
}

std::vector<ModelDefect> expert_defects(const ModelConfig& c) {
  std::vector<ModelDefect> found;
  if (!is_mixture(c.family)) return found;
  const auto demand = [&](bool holds, const char* key, std::string what, std::string allowed) {
    if (!holds) found.push_back({key, std::move(what), std::move(allowed)});
  };
  demand(0 < c.num_experts_per_tok && c.num_experts_per_tok <= c.num_experts, "num_experts_per_tok",
         fmt::format("{} of {} experts cannot be chosen", c.num_experts_per_tok, c.num_experts),
         fmt::format("1 to model.num_experts = {}", c.num_experts));
  const bool sigmoid = c.router_score == RouterScore::sigmoid;
  constexpr const char* of_softmax = "is made of probabilities that sum to 1, which router_score = \"sigmoid\" has not";
  demand(!sigmoid || c.router_aux_loss_coef == 0, "router_aux_loss_coef", of_softmax, "0");
  demand(!sigmoid || c.router_z_loss_coef == 0, "router_z_loss_coef", of_softmax, "0");
  demand(c.router_bias_until == 0 || c.router_bias_rate > 0, "router_bias_until",
         "there are no biases to leave as they are: model.router_bias_rate = 0", "0, or model.router_bias_rate > 0");
  if (c.family == Family::mixtral) {
    demand(!sigmoid, "router_score", "family mixtral chooses by probabilities", "softmax, or family qwen3_moe");
    demand(c.router_bias_rate == 0, "router_bias_rate", "family mixtral has no biases of the choice",
           "0, or family qwen3_moe");
    demand(!c.attention_bias, "attention_bias", "family mixtral has no biases", "false");
    demand(c.shared_expert_intermediate_size == 0, "shared_expert_intermediate_size",
           "family mixtral has no shared expert", "0, or family qwen3_moe");
    demand(c.norm_topk_prob, "norm_topk_prob", "the chosen probabilities of family mixtral sum to 1", "true");
    demand(c.moe_intermediate_size == c.intermediate_size, "moe_intermediate_size",
           fmt::format("{} is not model.intermediate_size = {}, the width of an expert of family mixtral",
                       c.moe_intermediate_size, c.intermediate_size),
           "intermediate_size alone");
  }
  return found;
}

void add_experts(std::vector<std::pair<std::string, std::string>>& keys, const ModelConfig& c) {
  if (!c.has_experts()) return;
  const auto add = [&](const std::string& key, const auto& value) {
    keys.emplace_back("model." + key, toml_text(value));
  };
  add("num_experts", c.num_experts);
  add("num_experts_per_tok", c.num_experts_per_tok);
  add("moe_intermediate_size", c.moe_intermediate_size);
  add("shared_expert_intermediate_size", c.shared_expert_intermediate_size);
  add("norm_topk_prob", c.norm_topk_prob);
  add("router_aux_loss_coef", c.router_aux_loss_coef);
  add("router_z_loss_coef", c.router_z_loss_coef);
  add("router_score", score_name(c.router_score));
  add("router_bias_rate", c.router_bias_rate);
  add("router_bias_until", c.router_bias_until);
}

namespace {

// Reads a count of experts, which a deck is to hold.
std::int64_t expert_count(const HfReader& in, const char* key, std::int64_t fallback) {
  const std::int64_t count = in.integer(key, fallback);
  if (count > most_experts) in.reject(key, count, fmt::format("an integer in [1, {}]", most_experts));
  return count;
}

}  // namespace

void read_hf_experts(const HfReader& in, ModelConfig& c) {
  if (!is_mixture(c.family)) return;
  const bool qwen = c.family == Family::qwen3_moe;
  // What transformers' classes have for keys that are absent.
  c.num_experts = qwen ? expert_count(in, "num_experts", expert_count(in, "num_local_experts", 128))
                       : expert_count(in, "num_local_experts", 8);
  c.num_experts_per_tok = expert_count(in, "num_experts_per_tok", qwen ? 8 : 2);
  c.moe_intermediate_size = qwen ? in.size("moe_intermediate_size", 768) : c.intermediate_size;
  c.norm_topk_prob = qwen ? in.boolean("norm_topk_prob", false) : true;
  c.shared_expert_intermediate_size = in.integer("shared_expert_intermediate_size", 0, 0);
  if (c.shared_expert_intermediate_size > largest_size)
    in.reject("shared_expert_intermediate_size", c.shared_expert_intermediate_size,
              fmt::format("an integer in [0, {}]", largest_size));
  const std::string score = in.text("router_score", by_softmax);
  if (score != by_softmax && score != by_sigmoid)
    in.reject("router_score", score, fmt::format("\"{}\", \"{}\"", by_softmax, by_sigmoid));
  c.router_score = score_of(score);
  c.router_bias_rate = in.number("router_bias_rate", 0);
  const double coefficient = in.number("router_aux_loss_coef", 0.001);
  c.router_aux_loss_coef = in.boolean("output_router_logits", false) ? coefficient : 0;
}

void write_hf_experts(const ModelConfig& c, nlohmann::ordered_json& json) {
  if (!is_mixture(c.family)) return;
  if (c.family == Family::qwen3_moe) {
    json["num_experts"] = c.num_experts;
    json["moe_intermediate_size"] = c.moe_intermediate_size;
    json["norm_topk_prob"] = c.norm_topk_prob;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = nlohmann::ordered_json::array();
    if (c.shared_expert_intermediate_size > 0)
      json["shared_expert_intermediate_size"] = c.shared_expert_intermediate_size;
    if (c.router_score != RouterScore::softmax) json["router_score"] = score_name(c.router_score);
    if (c.router_bias_rate > 0) json["router_bias_rate"] = c.router_bias_rate;
  } else {
    json["num_local_experts"] = c.num_experts;
    json["sliding_window"] = nullptr;
  }
  json["num_experts_per_tok"] = c.num_experts_per_tok;
  json["router_aux_loss_coef"] = c.router_aux_loss_coef;
  json["output_router_logits"] = c.router_aux_loss_coef > 0;
}

std::string mixture_difference(const ModelConfig& c) {
  if (c.shared_expert_intermediate_size > 0)
    return fmt::format("shared_expert_intermediate_size is {}, {} of transformers has no shared expert",
                       c.shared_expert_intermediate_size, name(c.family));
  if (c.router_score != RouterScore::softmax)
    return fmt::format("router_score is {}, {} of transformers chooses by softmax", score_name(c.router_score),
                       name(c.family));
  if (c.router_bias_rate > 0)
    return fmt::format("router_bias_rate is {}, {} of transformers chooses without biases", c.router_bias_rate,
                       name(c.family));
  return "";
}

}  // namespace sestina

// What decks and config.json say of mixtures of experts: keys, defaults of transformers' classes, names, counts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/deck/deck.hpp"
#include "core/deck/model_experts.hpp"
#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "core/optimizer/base/routing.hpp"
#include "regression/unit/core/read_model.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* mixture_sizes =
    "hidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 4\nvocab_size = 300\nhead_dim = 8\n";

// Returns the errors of a deck with this section [model], one string.
std::string errors_of(const std::string& model, const std::string& others = "") {
  Deck deck;
  deck.add_text("[model]\n" + model + others, "deck", ".");
  try {
    Options options = Options::read(deck);
    require_trainable(deck, options);
    deck.finish();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    return error.what();
  }
  return "";
}

TEST(ExpertKeys, DescribeAMixture) {
  const std::string experts = "num_experts = 8\nnum_experts_per_tok = 2\n";
  const ModelConfig q = read_model("family = \"qwen3_moe\"\nmoe_intermediate_size = 24\n" + experts + mixture_sizes);
  EXPECT_EQ(q.num_experts, 8);
  EXPECT_EQ(q.num_experts_per_tok, 2);
  EXPECT_EQ(q.moe_intermediate_size, 24);
  EXPECT_TRUE(q.norm_topk_prob);
  EXPECT_EQ(q.router_aux_loss_coef, 0);
  EXPECT_TRUE(q.head_norms());
  const ModelConfig m = read_model("family = \"mixtral\"\nintermediate_size = 40\n" + experts + mixture_sizes);
  EXPECT_EQ(m.moe_intermediate_size, 40);
  EXPECT_EQ(m.rope_theta, 1e6);
  EXPECT_FALSE(m.query_norms());
  Deck stored;  // what a run stores gives the same model
  stored.add_text(model_section(q), "stored", ".");
  EXPECT_EQ(model_section(ModelConfig::read(stored)), model_section(q));
}

TEST(ExpertKeys, AreRefusedWhereTheyMakeNoModel) {
  const std::string sizes = mixture_sizes, qwen = "family = \"qwen3_moe\"\n" + sizes,
                    good = qwen + "num_experts = 8\nnum_experts_per_tok = 2\nmoe_intermediate_size = 24\n",
                    mixtral = "family = \"mixtral\"\nnum_experts = 8\n" + sizes;
  const std::tuple<std::string, std::string, const char*> cases[] = {
      {"family = \"llama\"\nnum_experts = 8\n" + sizes, "", "model.num_experts: family llama has no experts"},
      {qwen, "", "model.num_experts: required"},
      {qwen + "num_experts = 4\nnum_experts_per_tok = 5\nmoe_intermediate_size = 8\n", "", "5 of 4 experts"},
      {mixtral + "num_experts_per_tok = 2\nnorm_topk_prob = false\n", "", "sum to 1"},
      {mixtral + "num_experts_per_tok = 2\nintermediate_size = 16\nmoe_intermediate_size = 8\n", "",
       "is not model.intermediate_size"},
      {mixtral + "num_experts_per_tok = 2\nattention_bias = true\n", "", "has no biases"},
      {good, "[model.linear]\nform = \"lora\"\n", "model.linear.form: \"lora\" is not implemented"},
      {good, "[model.linear]\nform = \"poet-x\"\nblock_size = 8\n", "model.linear.form: \"poet-x\" is not implemented"},
      {good, "[optimizer]\nkind = \"galore\"\nrank = 4\nweight_bits = 8\n",
       "model.family: conflicts with optimizer.weight_bits = 8"},
      {good, "[parallel]\ntp = 16\n", "parallel.tp: does not divide model.moe_intermediate_size"}};
  for (const auto& [model, others, message] : cases) {
    const std::string got = errors_of(model, others);
    EXPECT_NE(got.find(message), std::string::npos) << message << ", got " << got;
  }
}

TEST(ExpertKeys, AreThoseOfTransformers) {
  const auto bare = [](const char* type, const char* changes = "{}") {
    Json json{{"model_type", type}};
    json.update(Json::parse(changes));
    return ModelConfig::from_hf_json(json.dump(), "config.json");
  };
  const ModelConfig q = bare("qwen3_moe"), m = bare("mixtral");  // numbers of the classes of transformers 5
  EXPECT_EQ((std::vector<std::int64_t>{q.hidden_size, q.intermediate_size, q.num_hidden_layers, q.num_key_value_heads,
                                       q.head_dim, q.num_experts, q.num_experts_per_tok, q.moe_intermediate_size}),
            (std::vector<std::int64_t>{2048, 6144, 24, 4, 64, 128, 8, 768}));
  EXPECT_EQ((std::vector<std::int64_t>{m.hidden_size, m.intermediate_size, m.num_hidden_layers, m.num_key_value_heads,
                                       m.head_dim, m.num_experts, m.num_experts_per_tok, m.moe_intermediate_size}),
            (std::vector<std::int64_t>{4096, 14336, 32, 8, 128, 8, 2, 14336}));
  EXPECT_FALSE(q.norm_topk_prob);
  EXPECT_TRUE(m.norm_topk_prob);
  EXPECT_EQ(m.rope_theta, 1e6);
  EXPECT_EQ(m.rms_norm_eps, 1e-5);
  EXPECT_EQ(q.router_aux_loss_coef, 0);  // output_router_logits is false
  EXPECT_EQ(bare("mixtral", R"({"output_router_logits": true})").router_aux_loss_coef, 0.001);
  EXPECT_THROW(bare("qwen3_moe", R"({"decoder_sparse_step": 2})"), Error);
  EXPECT_THROW(bare("qwen3_moe", R"({"mlp_only_layers": [0]})"), Error);
  EXPECT_THROW(bare("mixtral", R"({"router_jitter_noise": 0.1})"), Error);
  for (ModelConfig c : {q, m}) {
    c.router_aux_loss_coef = 0.25;
    const ModelConfig back = ModelConfig::from_hf_json(c.to_hf_json(), "test");
    EXPECT_EQ(back.to_hf_json(), c.to_hf_json());
    EXPECT_EQ(model_section(back), model_section(c));
  }
}

TEST(ExpertKeys, AModelWithASharedExpertIsNoneOfTransformers) {
  ModelConfig c = preset("kimi-k2-like");
  EXPECT_NE(mixture_difference(c), "");
  const std::string text = c.to_hf_json();
  EXPECT_EQ(Json::parse(text)["model_type"], "sestina_moe");
  EXPECT_EQ(ModelConfig::from_hf_json(text, "test").shared_expert_intermediate_size, 2048);
  c.shared_expert_intermediate_size = 0;
  EXPECT_EQ(mixture_difference(c), "");
  EXPECT_EQ(Json::parse(c.to_hf_json())["model_type"], "qwen3_moe");
}

TEST(ExpertKeys, ChoicesBySigmoidsAndBiasesAreNoneOfTransformers) {
  const std::string
      qwen = "family = \"qwen3_moe\"\nnum_experts = 8\nnum_experts_per_tok = 2\nmoe_intermediate_size = 24\n",
      mixtral = "family = \"mixtral\"\nnum_experts = 8\nnum_experts_per_tok = 2\n";
  const std::string sigmoid = "router_score = \"sigmoid\"\n", biases = "router_bias_rate = 0.01\n";
  const ModelConfig c = read_model(qwen + sigmoid + biases + mixture_sizes);
  const std::string text = c.to_hf_json();
  EXPECT_EQ(Json::parse(text)["model_type"], "sestina_moe");
  EXPECT_EQ(model_section(ModelConfig::from_hf_json(text, "test")), model_section(c));
  for (const std::string& one : {sigmoid, biases})
    EXPECT_NE(mixture_difference(read_model(qwen + one + mixture_sizes)), "") << one;
  int frozen = 0;
  for (const TensorSpec& spec : tensor_specs(c)) {
    if (spec.trainable) continue;
    EXPECT_EQ(spec.name, fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", frozen++));
    EXPECT_EQ(spec.elements(), 8);
  }
  EXPECT_EQ(frozen, 2);
  const auto refused = [](const std::string& model, const char* message) {
    const std::string got = errors_of(model + mixture_sizes);
    EXPECT_NE(got.find(message), std::string::npos) << message << ", got " << got;
  };
  refused(qwen + sigmoid + "router_aux_loss_coef = 0.1\n", "model.router_aux_loss_coef: is made of probabilities");
  refused(qwen + sigmoid + "router_z_loss_coef = 0.1\n", "model.router_z_loss_coef: is made of probabilities");
  refused(mixtral + sigmoid, "model.router_score: family mixtral chooses by probabilities");
  refused(qwen + "router_bias_until = 3\n", "model.router_bias_until: there are no biases to leave as they are");
  refused(mixtral + biases, "model.router_bias_rate: family mixtral has no biases of the choice");
}

// 30.5 and 3.3 billion parameters, as the model's card says; of Kimi K2, 1 T and 32 B.
TEST(ExpertCounts, OfPresets) {
  const ModelConfig q = preset("qwen3-30b-a3b"), k = preset("kimi-k2-like");
  EXPECT_NEAR(static_cast<double>(parameter_count(q)), 30.5e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(active_count(q)), 3.3e9, 0.06e9);
  EXPECT_NEAR(static_cast<double>(parameter_count(k)), 1.04e12, 0.02e12);
  EXPECT_NEAR(static_cast<double>(active_count(k)), 34e9, 2e9);
  const double products = static_cast<double>(active_count(q) - q.vocab_size * q.hidden_size);
  const double vectors =
      static_cast<double>(q.num_hidden_layers * (2 * q.hidden_size + 2 * q.head_dim) + q.hidden_size);
  EXPECT_DOUBLE_EQ(flops_per_token(q, 4096), 6 * (products - vectors) + 12.0 * 48 * 32 * 128 * 4096);
}

TEST(ExpertSpecs, HaveTheNamesOfTransformers) {
  for (const Family family : {Family::qwen3_moe, Family::mixtral}) {
    ModelConfig c = family_defaults(family);
    c.hidden_size = c.vocab_size = 8;
    c.intermediate_size = c.moe_intermediate_size = 6;
    c.num_hidden_layers = c.num_attention_heads = c.num_key_value_heads = 1;
    c.head_dim = 8;
    c.num_experts = 2;
    c.num_experts_per_tok = 1;
    const bool qwen = family == Family::qwen3_moe;
    if (qwen) c.shared_expert_intermediate_size = 4;
    const std::string at = std::string("model.layers.0.") + (qwen ? "mlp." : "block_sparse_moe.");
    std::vector<std::string> want = {at + "gate.weight"}, got;
    if (qwen)
      for (const char* name : {"gate_proj", "up_proj", "down_proj"})
        want.push_back(fmt::format("{}shared_expert.{}.weight", at, name));
    for (const int expert : {0, 1})
      for (const char* name : {qwen ? "gate_proj" : "w1", qwen ? "up_proj" : "w3", qwen ? "down_proj" : "w2"})
        want.push_back(fmt::format("{}experts.{}.{}.weight", at, expert, name));
    for (const TensorSpec& spec : tensor_specs(c)) {
      if (!spec.name.starts_with(at)) continue;
      got.push_back(spec.name);
      EXPECT_EQ(spec.expert >= 0, spec.name.find("experts.") != std::string::npos) << spec.name;
      EXPECT_EQ(spec.follows, spec.name.ends_with(qwen ? "up_proj.weight" : "w3.weight")) << spec.name;
    }
    EXPECT_EQ(got, want);
    EXPECT_EQ(
        name_of_all_layers(tensor_specs(c)[tensor_specs(c).size() - 3]),
        qwen ? "model.layers.*.mlp.experts.*.down_proj.weight" : "model.layers.*.block_sparse_moe.experts.*.w2.weight");
  }
}

// Muon takes experts and router, unless a group says otherwise.
TEST(ExpertSpecs, AreMatricesOfTheOptimizer) {
  Deck deck;
  deck.add_text(std::string("[model]\nfamily = \"qwen3_moe\"\nnum_experts = 4\nnum_experts_per_tok = 2\n") +
                    "moe_intermediate_size = 24\n" + mixture_sizes +
                    "[optimizer]\nkind = \"muon\"\n[[optimizer.group]]\nmatch = \"*.0.mlp.gate.weight\"\n"
                    "kind = \"adamw\"\n",
                "deck", ".");
  const Options options = Options::read(deck);
  deck.finish();
  for (const TensorSpec& spec : tensor_specs(options.model))
    if (spec.name.find(".mlp.") != std::string::npos)
      EXPECT_EQ(is_matrix_optimized(spec, options.optimizer), spec.name != "model.layers.0.mlp.gate.weight")
          << spec.name;
}

}  // namespace
}  // namespace sestina

// config.json as other people write it: each key is read, refused by name, or known to be without effect. Numbers are
// those of transformers 5.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/deck/model_config.hpp"
#include "core/model/rope_table.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

// A small model of the family with these keys instead of its own, and without those that are gone.
Json small_model(const std::string& type, const std::string& changes = "{}",
                 const std::vector<std::string>& gone = {}) {
  Json json = type == "gpt2"
                  ? Json{{"model_type", type}, {"n_embd", 64}, {"n_layer", 2}, {"n_head", 4}, {"vocab_size", 300}}
                  : Json{{"model_type", type},     {"hidden_size", 64},        {"intermediate_size", 96},
                         {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                         {"head_dim", 16},         {"vocab_size", 300},        {"max_position_embeddings", 256}};
  json.update(Json::parse(changes));
  for (const std::string& key : gone) json.erase(key);
  return json;
}

ModelConfig read_hf(const Json& json) { return ModelConfig::from_hf_json(json.dump(), "config.json"); }

std::string refusal(const Json& json) {
  try {
    read_hf(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data) << error.what();
    return error.what();
  }
  return "";
}

constexpr const char* llama3 =
    R"("rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";

// Frequencies 0, 3, 5 and 7 of 8, as LlamaRotaryEmbedding of transformers 5 has them.
TEST(HfConfigKeys, RopeIsThatOfTransformers) {
  const std::vector<double> plain{1, 0.0316227786, 0.00316227786, 0.000316227786},
      far{1, 0.00729266508, 0.000274248188, 1.03133852e-05}, scaled{1, 0.00395284733, 0.000395284733, 3.95284733e-05},
      by_positions{1, 0.00661310693, 0.000395284733, 3.95284733e-05},
      far_scaled{1, 0.000911583134, 3.42810235e-05, 1.28917316e-06};
  const std::string at_64 = std::string(llama3) + R"(, "original_max_position_embeddings": 64)";
  const std::pair<std::string, std::vector<double>> cases[] = {
      {"{}", plain},
      {R"({"rope_theta": 500000.0})", far},
      {R"({"rope_scaling": {"rope_type": "default", "rope_theta": 500000.0}})", far},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 500000.0}})", far},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})", far},
      {R"({"rope_parameters": {"rope_theta": 500000.0}})", far},
      {R"({"rope_theta": 5e5, "rope_scaling": {}, "rope_parameters": {}})", far},
      {"{\"rope_scaling\": {" + at_64 + "}}", scaled},
      {"{\"rope_scaling\": {" + std::string(llama3) + "}}", by_positions},  // 256 of max_position_embeddings
      {"{\"rope_scaling\": {" + std::string(llama3) + "}, \"original_max_position_embeddings\": 32}", scaled},
      {"{\"rope_parameters\": {" + std::string(llama3) + ", \"rope_theta\": 5e5}}", far_scaled},
      {"{\"rope_theta\": 1e4, \"rope_scaling\": {" + at_64 + "}, \"rope_parameters\": {" + at_64 + "}}", scaled}};
  for (const char* type : {"llama", "qwen3", "olmo2"})
    for (const auto& [changes, expected] : cases) {
      const std::vector<double> got = rope_frequencies(read_hf(small_model(type, changes)));
      ASSERT_EQ(got.size(), 8u);
      const std::vector<double> some{got[0], got[3], got[5], got[7]};
      for (std::size_t i = 0; i < some.size(); ++i)
        EXPECT_NEAR(some[i], expected[i], 2e-7 * expected[i]) << type << changes;
    }
}

TEST(HfConfigKeys, WhatIsNotThereIsTheClassesOwn) {
  const auto bare = [](const char* type) { return read_hf(Json{{"model_type", type}}); };
  const ModelConfig llama = bare("llama"), olmo = bare("olmo2"), qwen = bare("qwen3"), gpt = bare("gpt2");
  const auto sizes = [](const ModelConfig& c) {
    return std::vector<std::int64_t>{
        c.vocab_size,          c.hidden_size,         c.intermediate_size, c.num_hidden_layers,
        c.num_attention_heads, c.num_key_value_heads, c.head_dim,          c.max_position_embeddings,
        c.bos_token_id,        c.eos_token_id,        c.pad_token_id};
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(llama), (Sizes{32000, 4096, 11008, 32, 32, 32, 128, 2048, 1, 2, -1}));
  EXPECT_EQ(sizes(olmo), (Sizes{50304, 4096, 11008, 32, 32, 32, 128, 2048, -1, 50279, 1}));
  EXPECT_EQ(sizes(qwen), (Sizes{151936, 4096, 22016, 32, 32, 32, 128, 32768, -1, -1, -1}));
  EXPECT_EQ(sizes(gpt), (Sizes{50257, 768, 3072, 12, 12, 12, 64, 1024, 50256, 50256, -1}));
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(olmo.rms_norm_eps, 1e-5);
  EXPECT_EQ(qwen.rms_norm_eps, 1e-6);
  EXPECT_EQ(gpt.rms_norm_eps, 1e-5);
  for (const ModelConfig* c : {&llama, &olmo, &qwen}) {
    EXPECT_EQ(c->rope_theta, 1e4);
    EXPECT_FALSE(c->tie_word_embeddings);
  }
  EXPECT_TRUE(gpt.tie_word_embeddings);
  EXPECT_NE(refusal(Json{{"model_type", "sestina_gpt"}}).find("hidden_size: missing"), std::string::npos);
  EXPECT_EQ(read_hf(small_model("qwen3", R"({"num_key_value_heads": null})")).num_key_value_heads, 4);
  EXPECT_NE(refusal(small_model("qwen3", "{}", {"num_key_value_heads"})), "");  // 32 of the class do not divide 4
  EXPECT_EQ(read_hf(small_model("olmo2")).eos_token_id, -1);                    // not in a vocabulary of 300
  EXPECT_EQ(read_hf(small_model("llama", R"({"eos_token_id": null})")).eos_token_id, -1);
}

TEST(HfConfigKeys, RefusesByName) {
  const std::string plain_yarn = R"("rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64)";
  const std::pair<std::string, const char*> cases[] = {
      {"{\"rope_scaling\": {" + plain_yarn + "}}", "rope_scaling: rope_type: got \"yarn\""},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.0}})", "rope_scaling: type: got \"linear\""},
      {R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})", "rope_scaling: type: got \"dynamic\""},
      {R"({"rope_parameters": {"rope_type": "longrope"}})", "rope_parameters: rope_type: got \"longrope\""},
      {"{\"rope_parameters\": {\"full_attention\": {" + plain_yarn + "}}}", "rope_parameters: full_attention"},
      {R"({"rope_parameters": {"rope_type": "default", "factor": 2.0}})", "rope_parameters: factor"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}})", "low_freq_factor: missing"},
      {"{\"rope_scaling\": {" + std::string(llama3) + "}, \"rope_parameters\": {\"rope_theta\": 5e5}}",
       "rope_parameters"},
      {"{\"rope_scaling\": {" + std::string(llama3) + ", \"partial_rotary_factor\": 0.5}}", "partial_rotary_factor"},
      {R"({"rope_scaling": 3})", "rope_scaling"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: got 0.5"},
      {R"({"mlp_bias": true})", "mlp_bias"},
      {R"({"use_sliding_window": true})", "use_sliding_window"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "layer_types"},
      {R"({"layer_types": ["full_attention"]})", "layer_types"},
      {R"({"is_causal": false})", "is_causal"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {R"({"pruned_heads": {"0": [1]}})", "pruned_heads"},
      {R"({"attention_dropout": 0.1})", "attention_dropout: got 0.1"},
      {R"({"logit_scale": 0.5})", "logit_scale: got 0.5"},
      {R"({"n_embd": 64})", "n_embd"},
      {R"({"rms_norm_eps": null})", "rms_norm_eps"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {R"({"vocab_size": 20000000})", "vocab_size"},
      {R"({"hidden_act": "relu"})", "relu"}};
  for (const char* type : {"llama", "qwen3", "olmo2"})
    for (const auto& [changes, part] : cases) {
      const std::string message = refusal(small_model(type, changes));
      EXPECT_NE(message.find(part), std::string::npos) << type << changes << ": " << message;
    }
  EXPECT_NE(refusal(small_model("llama", R"({"sliding_window": 8})")).find("sliding_window"), std::string::npos);
  EXPECT_EQ(refusal(small_model("qwen3", R"({"sliding_window": 8, "max_window_layers": 1})")), "");
  for (const char* changes : {R"({"scale_attn_weights": false})", R"({"scale_attn_by_inverse_layer_idx": true})",
                              R"({"add_cross_attention": true})", R"({"rope_theta": 1e4})", R"({"rotary_dim": 8})"})
    EXPECT_NE(refusal(small_model("gpt2", changes)), "") << changes;
}

// What base classes, older releases and tools of the hub write.
TEST(HfConfigKeys, TakesWhatIsKnownToBeWithoutEffect) {
  const std::string usual =
      R"({"architectures": ["LlamaForCausalLM"], "_name_or_path": "a/b", "torch_dtype": "bfloat16",
    "transformers_version": "4.31.0", "use_cache": true, "pretraining_tp": 2, "id2label": {"0": "LABEL_0"},
    "task_specific_params": {"text-generation": {"do_sample": true}}, "max_length": 50, "temperature": 0.6,
    "output_attentions": false, "torchscript": false, "is_decoder": false, "is_encoder_decoder": false, "pruned_heads": {},
    "add_cross_attention": false, "quantization_config": null, "tokenizer_class": "X", "auto_map": {}, "return_dict": true,
    "_attn_implementation_autoset": true, "chunk_size_feed_forward": 0, "problem_type": null, "sep_token_id": null})";
  for (const char* type : {"llama", "qwen3", "olmo2", "gpt2"})
    EXPECT_EQ(read_hf(small_model(type, usual)).to_hf_json(), read_hf(small_model(type)).to_hf_json()) << type;
  const ModelConfig gpt =
      read_hf(small_model("gpt2", R"({"n_ctx": 1024, "n_inner": null, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
    "resid_pdrop": 0.1, "summary_type": "cls_index", "summary_use_proj": true, "summary_activation": null,
    "summary_proj_to_labels": true, "summary_first_dropout": 0.1, "reorder_and_upcast_attn": false,
    "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false})"));
  EXPECT_EQ(gpt.intermediate_size, 256);
  const ModelConfig named =
      read_hf(small_model("gpt2", R"({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4})",
                          {"n_embd", "n_layer", "n_head"}));
  EXPECT_EQ(named.to_hf_json(), read_hf(small_model("gpt2")).to_hf_json());
  EXPECT_EQ(read_hf(small_model("llama", R"({"hidden_act": "swish"})")).hidden_act, "silu");
}

}  // namespace
}  // namespace sestina

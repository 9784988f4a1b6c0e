#include <gtest/gtest.h>

#include <map>

#include "core/deck/deck.hpp"
#include "core/deck/model_config.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/model/rope_table.hpp"
#include "regression/unit/core/read_model.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

TEST(Preset, HasThePublishedNumberOfParameters) {
  const std::map<std::string, std::int64_t> published{
      {"olmo2-1b", 1484916736}, {"olmo2-7b", 7298617344},   {"qwen3-1.7b", 1720574976}, {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360}, {"qwen3-14b", 14768307200}, {"qwen3-32b", 32762123264}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(preset(name)), count) << name;
  const std::map<std::string, double> about{{"llama-8m", 8.43e6},  {"llama-134m", 134.1e6}, {"llama-60m", 58e6},
                                            {"llama-130m", 134e6}, {"llama-350m", 368e6},   {"llama-1b", 1.34e9}};
  for (const auto& [name, count] : about) EXPECT_NEAR(parameter_count(preset(name)) / count, 1, 0.005) << name;
}

TEST(Preset, AllAreSound) {
  for (const std::string& name : preset_names()) {
    const ModelConfig c = preset(name);
    EXPECT_TRUE(defects(c).empty()) << name;
    EXPECT_EQ(c.preset, name);
    EXPECT_GT(flops_per_token(c, 1024), 6.0 * 0.5 * active_count(c)) << name;
  }
  EXPECT_THROW(preset("llama-2b"), Error);
}

TEST(Flops, CountProductsAndAttention) {
  ModelConfig c = preset("llama-8m");
  const double matrices = 8 * (4 * 256 * 256 + 3 * 256 * 688) + 4096 * 256;
  EXPECT_DOUBLE_EQ(flops_per_token(c, 256), 6 * matrices + 12.0 * 8 * 256 * 256);
  c.tie_word_embeddings = true;  // the head's product stays
  EXPECT_DOUBLE_EQ(flops_per_token(c, 256), 6 * matrices + 12.0 * 8 * 256 * 256);
}

// Returns the names of the tensors of a model with one layer.
std::vector<std::string> tensor_names_of(Family family, auto change) {
  ModelConfig c = family_defaults(family);
  c.hidden_size = c.intermediate_size = c.vocab_size = 8;
  c.num_hidden_layers = c.num_attention_heads = c.num_key_value_heads = 1;
  c.head_dim = 8;
  change(c);
  std::vector<std::string> list;
  for (const TensorSpec& spec : tensor_specs(c)) list.push_back(spec.name);
  return list;
}

TEST(TensorSpecs, NamesAndOrderOfTheFamilies) {
  const std::string at = "model.layers.0.", attention = at + "self_attn.", mlp = at + "mlp.";
  EXPECT_EQ(tensor_names_of(Family::llama, [](ModelConfig&) {}),
            (std::vector<std::string>{
                "model.embed_tokens.weight", at + "input_layernorm.weight", attention + "q_proj.weight",
                attention + "k_proj.weight", attention + "v_proj.weight", attention + "o_proj.weight",
                at + "post_attention_layernorm.weight", mlp + "gate_proj.weight", mlp + "up_proj.weight",
                mlp + "down_proj.weight", "model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(
      tensor_names_of(Family::olmo2, [](ModelConfig& c) { c.tie_word_embeddings = true; }),
      (std::vector<std::string>{"model.embed_tokens.weight", attention + "q_proj.weight", attention + "k_proj.weight",
                                attention + "v_proj.weight", attention + "q_norm.weight", attention + "k_norm.weight",
                                attention + "o_proj.weight", at + "post_attention_layernorm.weight",
                                mlp + "gate_proj.weight", mlp + "up_proj.weight", mlp + "down_proj.weight",
                                at + "post_feedforward_layernorm.weight", "model.norm.weight"}));
  const auto gpt = tensor_names_of(Family::gpt, [](ModelConfig& c) {
    c.position = ModelConfig::Position::learned;
    c.attention_bias = true;
  });
  for (const char* name : {"model.embed_positions.weight", "model.layers.0.self_attn.o_proj.bias",
                           "model.layers.0.mlp.up_proj.bias", "model.layers.0.input_layernorm.bias", "model.norm.bias"})
    EXPECT_EQ(std::count(gpt.begin(), gpt.end(), name), 1) << name;
}

TEST(TensorSpecs, SwitchesDecideWhichTensorsThereAre) {
  const std::string at = "model.layers.0.", attention = at + "self_attn.", mlp = at + "mlp.";
  const auto bare = tensor_names_of(Family::gpt, [](ModelConfig& c) {
    c.norm = ModelConfig::Norm::rmsnorm;
    c.norm_gain = c.qk_norm_gain = false;
    c.qk_norm = c.embedding_norm = true;
  });
  EXPECT_EQ(bare, (std::vector<std::string>{"model.embed_tokens.weight", attention + "q_proj.weight",
                                            attention + "k_proj.weight", attention + "v_proj.weight",
                                            attention + "o_proj.weight", mlp + "up_proj.weight",
                                            mlp + "down_proj.weight", "lm_head.weight"}));
  const auto gains = tensor_names_of(Family::gpt, [](ModelConfig& c) {
    c.norm = ModelConfig::Norm::rmsnorm;
    c.qk_norm = c.embedding_norm = c.head_bias = true;
  });
  EXPECT_EQ(gains, (std::vector<std::string>{
                       "model.embed_tokens.weight", "model.embed_norm.weight", at + "input_layernorm.weight",
                       attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight",
                       attention + "q_norm.weight", attention + "k_norm.weight", attention + "o_proj.weight",
                       at + "post_attention_layernorm.weight", mlp + "up_proj.weight", mlp + "down_proj.weight",
                       "model.norm.weight", "lm_head.bias", "lm_head.weight"}));
}

TEST(HfConfig, SwitchesOfGptComeBackAndAreNoGpt2) {
  ModelConfig plain = family_defaults(Family::gpt);
  plain.hidden_size = plain.intermediate_size = 64;
  plain.num_hidden_layers = 2;
  plain.num_attention_heads = plain.num_key_value_heads = 4;
  plain.head_dim = 16;
  plain.vocab_size = 50;
  plain.attention_bias = true;
  plain.position = ModelConfig::Position::learned;
  ASSERT_EQ(gpt2_difference(plain), "");
  const std::pair<const char*, void (*)(ModelConfig&)> switches[] = {
      {"norm", [](ModelConfig& c) { c.norm = ModelConfig::Norm::rmsnorm; }},
      {"qk_norm", [](ModelConfig& c) { c.qk_norm = true; }},
      {"embedding_norm", [](ModelConfig& c) { c.embedding_norm = true; }},
      {"attention_multiplier", [](ModelConfig& c) { c.attention_multiplier = 0.12; }},
      {"final_logit_softcapping", [](ModelConfig& c) { c.final_logit_softcapping = 15; }},
      {"head_bias", [](ModelConfig& c) { c.head_bias = true; }}};
  ModelConfig all = plain;
  for (const auto& [key, set] : switches) {
    ModelConfig one = plain;
    set(one);
    set(all);
    EXPECT_TRUE(gpt2_difference(one).starts_with(key)) << gpt2_difference(one);
  }
  all.position = ModelConfig::Position::rope;
  all.norm_gain = all.qk_norm_gain = false;
  all.partial_rotary_factor = 0.5;
  all.softcapping_form = ModelConfig::SoftcapForm::root;
  all.hidden_act = "relu2";
  const ModelConfig back = ModelConfig::from_hf_json(all.to_hf_json(), "test");
  EXPECT_EQ(back.to_hf_json(), all.to_hf_json());
  EXPECT_EQ(model_section(back), model_section(all));
  EXPECT_NE(back.to_hf_json(), plain.to_hf_json());
  // transformers knows relu2 by name, in GPT-2 too.
  ModelConfig squared = plain;
  squared.hidden_act = "relu2";
  EXPECT_EQ(ModelConfig::from_hf_json(squared.to_hf_json(), "test").hidden_act, "relu2");
}

TEST(HfConfig, RoundTripsThroughItsOwnText) {
  for (const std::string& name : preset_names()) {
    ModelConfig c = preset(name);
    c.rope_scaling = RopeScaling{4, 2, 8, 4096};
    c.eos_token_id = 7;
    c.attention_bias = true;
    const ModelConfig back = ModelConfig::from_hf_json(c.to_hf_json(), "test");
    EXPECT_EQ(back.to_hf_json(), c.to_hf_json()) << name;
    EXPECT_EQ(parameter_count(back), parameter_count(c)) << name;
    EXPECT_EQ(back.rms_norm_eps, c.rms_norm_eps) << name;
  }
}

const std::string small_json =
    R"("model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
  "num_attention_heads": 4, "vocab_size": 50)";

TEST(HfConfig, ReadsOldAndNewKeys) {
  const ModelConfig old = ModelConfig::from_hf_json(
      "{" + small_json + R"(, "rope_theta": 500000.0, "eos_token_id": [3, 4], "torch_dtype": "bfloat16",
      "rope_scaling": {"type": "llama3", "factor": 32.0, "low_freq_factor": 1, "high_freq_factor": 4,
                       "original_max_position_embeddings": 8192}})",
      "old");
  EXPECT_EQ(old.rope_theta, 5e5);
  ASSERT_TRUE(old.rope_scaling);
  EXPECT_EQ(old.rope_scaling->factor, 32);
  EXPECT_EQ(old.eos_token_id, 3);
  EXPECT_EQ(old.head_dim, 16);
  EXPECT_EQ(old.num_key_value_heads, 4);
  EXPECT_EQ(old.rms_norm_eps, 1e-6);
  const ModelConfig now = ModelConfig::from_hf_json(
      "{" + small_json +
          R"(, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "pad_token_id": null})",
      "new");
  EXPECT_EQ(now.rope_theta, 1e6);
  EXPECT_FALSE(now.rope_scaling);
  EXPECT_EQ(now.pad_token_id, -1);
}

TEST(HfConfig, RefusesWhatItCannotDo) {
  const auto message = [](const std::string& text) {
    try {
      ModelConfig::from_hf_json(text, "file");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      return std::string(error.what());
    }
    ADD_FAILURE() << text;
    return std::string();
  };
  const auto with = [](const std::string& more) { return "{" + small_json + ", " + more + "}"; };
  EXPECT_NE(message("").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message(R"({"model_type": "mamba"})").find("\"mamba\""), std::string::npos);
  EXPECT_NE(message(R"({"model_type": "sestina_gpt"})").find("hidden_size: missing"), std::string::npos);
  EXPECT_NE(message(with(R"("num_key_value_heads": 3)")).find("num_key_value_heads"), std::string::npos);
  EXPECT_NE(message(with(R"("hidden_size": -4)")).find("-4"), std::string::npos);
  EXPECT_NE(message(with(R"("hidden_size": 1e99)")).find("hidden_size"), std::string::npos);
  EXPECT_NE(message(with(R"("rope_theta": "big")")).find("rope_theta"), std::string::npos);
  EXPECT_NE(message(with(R"("rope_scaling": {"rope_type": "yarn"})")).find("yarn"), std::string::npos);
  EXPECT_NE(message(with(R"("mlp_bias": true)")).find("mlp_bias"), std::string::npos);
  EXPECT_NE(message(with(R"("hidden_act": "relu")")).find("relu"), std::string::npos);
  EXPECT_NE(message(with(R"("attention_dropout": 0.1)")).find("attention_dropout"), std::string::npos);
}

TEST(Rope, ScalesLowFrequenciesOnly) {
  ModelConfig c = preset("llama-8b");
  const auto plain = rope_frequencies(c);
  c.rope_scaling = RopeScaling{};
  const auto scaled = rope_frequencies(c);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 8);
  for (std::size_t i = 0; i + 1 < scaled.size(); ++i) {
    EXPECT_LT(scaled[i + 1], scaled[i]);
    EXPECT_LE(scaled[i], plain[i]);
  }
}

TEST(ModelDeck, PresetWithKeysBesideIt) {
  const ModelConfig c = read_model("preset = \"llama-60m\"\nnum_attention_heads = 4\nvocab_size = 300");
  EXPECT_EQ(c.hidden_size, 512);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.vocab_size, 300);
  EXPECT_EQ(c.preset, "llama-60m");
  const ModelConfig q = read_model("preset = \"qwen3-0.6b\"\nhidden_size = 256\nrope_scaling = {factor = 4.0}");
  EXPECT_EQ(q.head_dim, 128);
  EXPECT_EQ(q.num_key_value_heads, 8);
  ASSERT_TRUE(q.rope_scaling);
  EXPECT_EQ(q.rope_scaling->factor, 4);
}

TEST(ModelDeck, FamilyWithSizes) {
  const std::string sizes = "hidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\nvocab_size = 300\n";
  const ModelConfig c = read_model("family = \"gpt\"\nposition = \"learned\"\n" + sizes);
  EXPECT_EQ(c.intermediate_size, 256);
  EXPECT_EQ(c.hidden_act, "gelu");
  EXPECT_EQ(c.position, ModelConfig::Position::learned);
  const ModelConfig o = read_model("family = \"olmo2\"\n" + sizes);
  EXPECT_EQ(o.intermediate_size, 176);
  EXPECT_EQ(o.rope_theta, 5e5);
  EXPECT_EQ(read_model("family = \"qwen3\"\n" + sizes).head_dim, 128);
}

TEST(ModelDeck, FirstRangesByRole) {
  const ModelConfig c = read_model(
      "family = \"llama\"\nhidden_size = 48\nnum_hidden_layers = 1\nnum_attention_heads = 4\nvocab_size = 300\n"
      "intermediate_size = 75\ninit = {embed = 1, q = \"fan_in\", o = 0, down = \"fan_in\", head = 0}");
  const auto range = [&](const std::string& name) {
    for (const TensorSpec& spec : tensor_specs(c))
      if (spec.name.ends_with(name)) return spec.initial == Initial::zeros ? -1 : spec.initial_range;
    return 7.0;
  };
  EXPECT_EQ(range("embed_tokens.weight"), 1);
  EXPECT_DOUBLE_EQ(range("q_proj.weight"), 1.0 / 12);
  EXPECT_EQ(range("k_proj.weight"), 0);  // initializer_range
  EXPECT_EQ(range("o_proj.weight"), -1);
  EXPECT_EQ(range("gate_proj.weight"), 0);
  EXPECT_DOUBLE_EQ(range("down_proj.weight"), 1.0 / 15);
  EXPECT_EQ(range("lm_head.weight"), -1);
}

TEST(ModelDeck, FolderOfTransformers) {
  const std::string folder = SESTINA_SOURCE_DIR + "/regression/golden/models/qwen3-tied";
  const ModelConfig c = read_model("from_hf = \"" + folder + "\"");
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.from_hf, folder);
  EXPECT_TRUE(c.tie_word_embeddings);
}

// What a run stores holds the model, not where it came from.
TEST(ModelDeck, AFolderIsRecordedAsItsKeys) {
  const std::string folder = SESTINA_SOURCE_DIR + "/regression/golden/models/qwen3-tied";
  Deck deck, stored, given;
  deck.add_text("[model]\nfrom_hf = \"" + folder + "\"\n[model.linear]\nform = \"dense\"\n", "deck", ".");
  ModelConfig from_folder = ModelConfig::read(deck);
  deck.finish();
  record_model(deck, from_folder);
  from_folder.eos_token_id = -1;  // token ids go with the files that a checkpoint carries
  EXPECT_EQ(deck.dump().find("from_hf"), std::string::npos) << deck.dump();
  stored.add_text(deck.dump(), "stored", ".");
  const ModelConfig back = ModelConfig::read(stored);
  stored.finish();
  EXPECT_EQ(back.from_hf, "");
  EXPECT_EQ(back.to_hf_json(), from_folder.to_hf_json());
  EXPECT_TRUE(forbidden_changes(stored, deck).empty());  // a resume finds the same model
  given.add_text(deck.dump(), "stored", ".");            // a deck that names the folder next to a stored one
  given.add_override("model.from_hf=no/such/folder");
  given.forget("model.from_hf");
  EXPECT_EQ(ModelConfig::read(given).to_hf_json(), from_folder.to_hf_json());
  given.finish();
}

TEST(ModelDeck, SectionsSayAllOfAConfiguration) {
  ModelConfig c = preset("llama-8m");
  c.rope_scaling = RopeScaling{4, 2, 8, 4096};
  c.rope_theta = 12345.5;
  c.rms_norm_eps = 3e-7;
  c.attention_bias = c.tie_word_embeddings = true;
  c.initializer_range = 0.01;
  Deck deck;
  deck.add_text(model_section(c), "section", ".");
  EXPECT_EQ(ModelConfig::read(deck).to_hf_json(), c.to_hf_json()) << model_section(c);
  deck.finish();
}

TEST(ModelDeck, SaysWhatIsWrong) {
  const auto errors = [](const std::string& toml) {
    try {
      read_model(toml);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_deck);
      return std::string(error.what());
    }
    ADD_FAILURE() << toml;
    return std::string();
  };
  const auto says = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(says(errors(""), "no model given"));
  EXPECT_TRUE(says(errors("preset = \"llama-61m\""), "llama-60m"));
  EXPECT_TRUE(says(errors("family = \"llama\""), "hidden_size"));
  EXPECT_TRUE(says(errors("preset = \"llama-60m\"\nnum_key_value_heads = 3"), "do not divide"));
  EXPECT_TRUE(says(errors("preset = \"llama-60m\"\nposition = \"learned\""), "learned"));
  EXPECT_TRUE(says(errors("preset = \"llama-60m\"\nhidden_act = \"gelu\""), "silu"));
  EXPECT_TRUE(says(errors("preset = \"llama-60m\"\nhidden_sise = 3"), "hidden_sise"));
  const std::string gpt =
      "family = \"gpt\"\nhidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\nvocab_size = 300\n";
  EXPECT_TRUE(says(errors(gpt + "norm_gain = false"), "a LayerNorm has weights"));
  EXPECT_TRUE(says(errors(gpt + "position = \"learned\"\npartial_rotary_factor = 0.5"), "positions are learned"));
  EXPECT_TRUE(says(errors(gpt + "partial_rotary_factor = 0.1"), "fewer than two pairs"));
  EXPECT_TRUE(says(errors(gpt + "init = {q = -1}"), "model.init.q"));
  EXPECT_TRUE(says(errors(gpt + "init = {q = 1}\nlinear = {form = \"lora\"}"), "frozen weights begin"));
  for (const char* of_gpt : {"norm_gain = false", "qk_norm = true", "embedding_norm = true", "head_bias = true",
                             "partial_rotary_factor = 0.5", "attention_multiplier = 1", "final_logit_softcapping = 30"})
    EXPECT_TRUE(says(errors(std::string("preset = \"llama-60m\"\n") + of_gpt), "gpt")) << of_gpt;
  EXPECT_TRUE(says(errors("from_hf = \"no/such/folder\""), "config.json"));
  const std::string golden = SESTINA_SOURCE_DIR + "/regression/golden/models/qwen3-tied";
  EXPECT_TRUE(says(errors("from_hf = \"" + golden + "\"\nvocab_size = 3"), "conflicts with model.from_hf"));
}

}  // namespace
}  // namespace sestina

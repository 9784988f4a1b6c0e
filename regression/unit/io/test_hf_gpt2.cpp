// A gpt of GPT-2's shape goes out as GPT2LMHeadModel and comes back; old files have other names. Exports name the begin
// and the end of a text.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "io/hf/hf_gpt2.hpp"
#include "io/hf/hf_model.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "kernels/base/random.hpp"
#include "sestina_test_paths.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;

ModelConfig gpt2_config() {
  return ModelConfig::from_hf_json(
      R"({"model_type":"gpt2","n_embd":12,"n_layer":2,"n_head":2,"n_positions":16,"vocab_size":300,"n_inner":null})",
      "config.json");
}

struct Gpt2Weights {
  explicit Gpt2Weights(const ModelConfig& config) {
    for (const TensorSpec& spec : tensor_specs(config)) {
      auto& values = data[spec.name];
      for (std::int64_t i = 0; i < spec.elements(); ++i)
        values.push_back(static_cast<float>(normal(stream_of(1, spec.name), static_cast<std::uint64_t>(i))));
      tensors.push_back({spec, values.data()});
    }
  }
  std::map<std::string, std::vector<float>> data;
  std::vector<HfTensor> tensors;
};

void expect_equal(const std::string& folder, const ModelConfig& config, const Gpt2Weights& weights) {
  const SafeTensors file = open_hf_weights(folder, config);
  for (const TensorSpec& spec : tensor_specs(config)) {
    std::vector<float> got(static_cast<std::size_t>(spec.elements()));
    read_hf_tensor(file, spec, got.data(), "the folder");
    EXPECT_EQ(got, weights.data.at(spec.name)) << spec.name;
  }
}

TEST(HfGpt2, RoundTripsAsGpt2) {
  const ModelConfig config = gpt2_config();
  EXPECT_EQ(config.intermediate_size, 48);
  EXPECT_EQ(config.hidden_act, "gelu_new");
  EXPECT_TRUE(config.tie_word_embeddings);
  const TemporaryFolder folder;
  const Gpt2Weights weights(config);
  write_hf_model(folder.path(), config, weights.tensors, false);
  const auto json = nlohmann::json::parse(test::read_bytes(folder / "config.json"));
  EXPECT_EQ(json["architectures"][0], "GPT2LMHeadModel");
  EXPECT_EQ(json["n_embd"], 12);
  const ModelConfig back = read_hf_config(folder.path());
  EXPECT_EQ(back.to_hf_json(), config.to_hf_json());
  expect_equal(folder.path(), back, weights);

  // Conv1D: input by output, and q, k, v side by side in the columns.
  const SafeTensors file = SafeTensors::open(folder.path());
  std::vector<float> fused(12 * 36);
  file.read_f32("transformer.h.1.attn.c_attn.weight", {12, 36}, fused.data());
  const auto& k = weights.data.at("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(fused[3 * 36 + 12 + 5], k[5 * 12 + 3]);
  EXPECT_FALSE(file.tensors().contains("lm_head.weight"));
}

TEST(HfGpt2, ReadsTheNamesOfOldFiles) {
  const ModelConfig config = gpt2_config();
  const TemporaryFolder folder, old;
  const Gpt2Weights weights(config);
  write_hf_model(folder.path(), config, weights.tensors, false);
  const SafeTensors file = SafeTensors::open(folder.path());
  std::vector<SafeTensorSource> sources;
  const std::vector<float> mask(16 * 16);
  for (const auto& [name, tensor] : file.tensors())
    sources.push_back(
        {name.substr(std::string("transformer.").size()), tensor.dtype, tensor.shape, tensor.data, tensor.bytes});
  sources.push_back({"h.0.attn.bias", "F32", {1, 1, 16, 16}, mask.data(), 4 * mask.size()});
  write_safetensors(old.path(), sources);
  expect_equal(old.path(), config, weights);
  sources.front().name = "h.0.unheard_of";
  write_safetensors(old.path(), sources);
  expect_error(ExitCode::bad_data, {"unknown (h.0.unheard_of)"}, [&] { open_hf_weights(old.path(), config); });
}

TEST(HfGpt2, SaysWhatIsNoGpt2) {
  ModelConfig config = gpt2_config();
  EXPECT_EQ(gpt2_difference(config), "");
  config.position = ModelConfig::Position::rope;
  EXPECT_NE(gpt2_difference(config).find("rope"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(config.to_hf_json())["model_type"], "sestina_gpt");
  config = gpt2_config();
  config.num_key_value_heads = 1;
  EXPECT_NE(gpt2_difference(config).find("key/value"), std::string::npos);
}

TEST(HfGpt2, ExportsNameBeginAndEndOfAText) {
  const ModelConfig config = gpt2_config();
  const TemporaryFolder folder;
  TokenizerTraining training;
  training.vocab_size = 300;
  test::write_bytes(
      folder / "own.json",
      train_tokenizer({test::read_bytes(std::string(SESTINA_SOURCE_DIR) + "/regression/data/orchard.txt")}, training));
  const auto end = Tokenizer::load(folder / "own.json").end_of_document();
  ASSERT_GE(end, 0);
  const Gpt2Weights weights(config);
  write_hf_model(folder.path(), config, weights.tensors, false, folder / "own.json");
  const auto read = [&](const char* name) { return nlohmann::json::parse(test::read_bytes(folder / name)); };
  EXPECT_EQ(read("config.json")["eos_token_id"], end);
  EXPECT_EQ(read("generation_config.json")["eos_token_id"], end);
  EXPECT_EQ(read("generation_config.json")["bos_token_id"], end);
  EXPECT_EQ(read("tokenizer_config.json")["eos_token"], "<|endoftext|>");
  EXPECT_EQ(read("tokenizer_config.json")["tokenizer_class"], "PreTrainedTokenizerFast");
}

}  // namespace
}  // namespace sestina

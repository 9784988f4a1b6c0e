#include "io/hf/hf_model.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/random.hpp"
#include "sestina_test_paths.hpp"
#include "test_files.hpp"

namespace sestina {
namespace {

using test::expect_error;
using test::TemporaryFolder;

ModelConfig small(Family family, bool tied) {
  const char* type = name(family);
  const nlohmann::json json = {{"model_type", type},   {"hidden_size", 16},           {"intermediate_size", 24},
                               {"head_dim", 8},        {"num_attention_heads", 2},    {"num_key_value_heads", 1},
                               {"vocab_size", 37},     {"num_hidden_layers", 2},      {"max_position_embeddings", 32},
                               {"rope_theta", 5000.0}, {"tie_word_embeddings", tied}, {"eos_token_id", 3}};
  return ModelConfig::from_hf_json(json.dump(), "config.json");
}

struct Weights {
  explicit Weights(const ModelConfig& config) {
    for (const TensorSpec& spec : tensor_specs(config)) {
      auto& values = data[spec.name];
      values.resize(spec.elements());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(normal(stream_of(1, spec.name), i));
      tensors.push_back({spec, values.data()});
    }
  }
  std::map<std::string, std::vector<float>> data;
  std::vector<HfTensor> tensors;
};

std::vector<float> read(const SafeTensors& file, const TensorSpec& spec) {
  std::vector<float> out(spec.elements());
  read_hf_tensor(file, spec, out.data(), "the folder");
  return out;
}

TEST(HfModel, RefusesAValueThatIsNotFiniteByName) {
  const test::TemporaryFolder folder;
  const ModelConfig config = small(Family::llama, false);
  Weights weights(config);
  const TensorSpec& spec = weights.tensors[3].spec;
  weights.data.at(spec.name)[5] = -std::numeric_limits<float>::infinity();
  write_hf_model(folder.path(), config, weights.tensors, false);
  const SafeTensors file = open_hf_weights(folder.path(), config);
  EXPECT_NO_THROW(read(file, weights.tensors[2].spec));
  try {
    read(file, spec);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find(spec.name + " holds a value that is not finite (-inf"), std::string::npos)
        << error.what();
  }
}

TEST(HfModel, RoundTripsEveryFamilyBitForBit) {
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::qwen3_moe, Family::mixtral})
    for (const bool tied : {false, true}) {
      const TemporaryFolder folder;
      const ModelConfig config = small(family, tied);
      const Weights weights(config);
      write_hf_model(folder.path(), config, weights.tensors, false);
      const ModelConfig back = read_hf_config(folder.path());
      EXPECT_EQ(back.to_hf_json(), config.to_hf_json());
      const SafeTensors file = open_hf_weights(folder.path(), back);
      EXPECT_EQ(file.tensors().size(), weights.tensors.size());
      for (const auto& [spec, data] : weights.tensors)
        EXPECT_EQ(read(file, spec), weights.data.at(spec.name)) << spec.name;
    }
}

TEST(HfModel, RoundsToTheNearestBf16) {
  const TemporaryFolder folder;
  const ModelConfig config = small(Family::llama, true);
  Weights weights(config);
  auto& norm = weights.data.at("model.norm.weight");
  norm[0] = std::bit_cast<float>(0x3f808000u);  // a tie: to even, down
  norm[1] = std::bit_cast<float>(0x3f818000u);  // a tie: to even, up
  norm[2] = std::bit_cast<float>(0x3f808001u);
  norm[3] = NAN;
  norm[4] = INFINITY;
  norm[5] = -0.0f;
  write_hf_model(folder.path(), config, weights.tensors, true);
  const SafeTensors file = open_hf_weights(folder.path(), config);
  for (const auto& [spec, data] : weights.tensors) {
    std::vector<float> got(spec.elements());
    file.read_f32(spec.name, spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.cols}, got.data());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!std::isfinite(data[i])) continue;
      ASSERT_LE(std::abs(got[i] - data[i]), 0x1p-8f * std::abs(data[i])) << spec.name;
    }
    if (spec.name != "model.norm.weight") continue;
    EXPECT_EQ(got[0], std::bit_cast<float>(0x3f800000u));
    EXPECT_EQ(got[1], std::bit_cast<float>(0x3f820000u));
    EXPECT_EQ(got[2], std::bit_cast<float>(0x3f810000u));
    EXPECT_TRUE(std::isnan(got[3]));
    EXPECT_EQ(got[4], INFINITY);
    EXPECT_TRUE(std::signbit(got[5]));
  }
  EXPECT_EQ(nlohmann::json::parse(test::read_bytes(folder / "config.json"))["dtype"], "bfloat16");
}

TEST(HfModel, ListsMissingAndUnknownTensors) {
  const TemporaryFolder folder;
  const ModelConfig config = small(Family::llama, true);
  const Weights weights(config);
  std::vector<SafeTensorSource> sources;
  for (const auto& [spec, data] : weights.tensors) {
    std::vector<std::int64_t> shape{spec.rows};
    if (!spec.is_vector()) shape.push_back(spec.cols);
    sources.push_back({spec.name, "F32", shape, data, 4 * static_cast<std::size_t>(spec.elements())});
  }
  const float value = 1;
  sources.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, &value, 4});
  sources.push_back(sources.front());  // the table of tokens, once more
  sources.back().name = "lm_head.weight";
  write_safetensors(folder.path(), sources);
  EXPECT_EQ(open_hf_weights(folder.path(), config).tensors().size(), sources.size());
  ModelConfig untied = config;
  untied.tie_word_embeddings = false;
  untied.num_hidden_layers = 1;
  expect_error(ExitCode::bad_data, {"0 tensors missing", "9 unknown", "model.layers.1.mlp.up_proj.weight"},
               [&] { open_hf_weights(folder.path(), untied); });
  sources[2].name = "strange";
  write_safetensors(folder.path(), sources);
  expect_error(ExitCode::bad_data, {"1 tensors missing (" + weights.tensors[2].spec.name, "1 unknown (strange)"},
               [&] { open_hf_weights(folder.path(), config); });
}

// transformers unties such a model with a warning: never is the head dropped in silence.
TEST(HfModel, RefusesAnotherHeadBesideATiedConfig) {
  const TemporaryFolder folder;
  const ModelConfig config = small(Family::llama, true);
  const Weights weights(config);
  std::vector<SafeTensorSource> sources;
  for (const auto& [spec, data] : weights.tensors) {
    std::vector<std::int64_t> shape{spec.rows};
    if (!spec.is_vector()) shape.push_back(spec.cols);
    sources.push_back({spec.name, "F32", shape, data, 4 * static_cast<std::size_t>(spec.elements())});
  }
  ASSERT_EQ(sources.front().name, "model.embed_tokens.weight");
  std::vector<float> head = weights.data.at("model.embed_tokens.weight");
  head.back() += 1;
  sources.push_back(sources.front());
  sources.back().name = "lm_head.weight";
  sources.back().data = head.data();
  write_safetensors(folder.path(), sources);
  expect_error(ExitCode::bad_data, {"lm_head.weight", "tie_word_embeddings"},
               [&] { open_hf_weights(folder.path(), config); });
  std::vector<double> wide(head.begin(), head.end());
  sources.back().dtype = "F64";
  sources.back().data = wide.data();
  sources.back().bytes = 8 * wide.size();
  std::copy(weights.data.at("model.embed_tokens.weight").begin(), weights.data.at("model.embed_tokens.weight").end(),
            wide.begin());
  write_safetensors(folder.path(), sources);
  EXPECT_NO_THROW(open_hf_weights(folder.path(), config));  // the same values in another form
}

TEST(HfModel, RefusesOtherShapes) {
  const TemporaryFolder folder;
  ModelConfig config = small(Family::qwen3, true);
  const Weights weights(config);
  write_hf_model(folder.path(), config, weights.tensors, false);
  config.vocab_size = 38;
  const SafeTensors file = open_hf_weights(folder.path(), config);
  expect_error(ExitCode::bad_data, {"embed_tokens", "[37, 16]", "[38, 16]"},
               [&] { read(file, tensor_specs(config).front()); });
}

TEST(HfModel, RefusesFoldersThatAreNoModels) {
  const TemporaryFolder folder;
  expect_error(ExitCode::input_missing, {"config.json"}, [&] { read_hf_config(folder.path()); });
  test::write_bytes(folder / "config.json", "{");
  expect_error(ExitCode::bad_data, {"config.json"}, [&] { read_hf_config(folder.path()); });
  expect_error(ExitCode::input_missing, {".safetensors"},
               [&] { open_hf_weights(folder.path(), small(Family::llama, true)); });
}

TEST(HfModel, ReadsTheGoldenModels) {
  const std::string models = std::string(SESTINA_SOURCE_DIR) + "/regression/golden/models";
  if (!std::filesystem::is_directory(models)) GTEST_SKIP() << "no golden models in this tree";
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const TemporaryFolder folder;
    const ModelConfig config = read_hf_config(entry.path().string());
    const SafeTensors file = open_hf_weights(entry.path().string(), config);
    std::map<std::string, std::vector<float>> data;
    std::vector<HfTensor> tensors;
    for (const TensorSpec& spec : tensor_specs(config))
      tensors.push_back({spec, (data[spec.name] = read(file, spec)).data()});
    write_hf_model(folder.path(), config, tensors, false);
    const SafeTensors again = open_hf_weights(folder.path(), read_hf_config(folder.path()));
    for (const auto& [spec, values] : tensors) EXPECT_EQ(read(again, spec), data.at(spec.name)) << spec.name;
  }
}

}  // namespace
}  // namespace sestina

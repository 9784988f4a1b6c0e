#include <gtest/gtest.h>

#include "regression/unit/core/model_rig.hpp"

namespace sestina {
namespace {

TEST(Arena, FollowersTouchAndGroupsAreAligned) {
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt, Family::mixtral}) {
    ModelConfig config = small_model(family);
    config.attention_bias = true;
    const auto specs = tensor_specs(config);
    const ArenaLayout all = arena_layout(specs), matrices = matrix_arena_layout(specs);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::size_t end = i == 0 ? 0 : all.offset[i - 1] + static_cast<std::size_t>(specs[i - 1].elements());
      const std::size_t aligned = (end + arena_alignment - 1) / arena_alignment * arena_alignment;
      EXPECT_EQ(all.offset[i], specs[i].follows ? end : aligned) << specs[i].name;
      EXPECT_LE(matrices.offset[i], all.offset[i]);
    }
    EXPECT_EQ(all.elements, all.offset.back() + static_cast<std::size_t>(specs.back().elements()));
    EXPECT_LT(matrices.elements, all.elements);
  }
}

TEST(Arena, MasterWeightsAreTheComputeWeightsOfOneType) {
  const auto specs = tensor_specs(small_model(Family::llama));
  const Arena<Device, float> plain(specs, false);
  const Arena<Device, bf16> rounded(specs, true);
  EXPECT_EQ(plain.weight_bytes(), 0u);
  EXPECT_EQ(plain.gradient_bytes(), 0u);
  EXPECT_EQ(plain.compute(0).size(), 0u);
  EXPECT_EQ(plain.matrix(0), plain.master(0).data());
  for (std::size_t i = 0; i < rounded.size(); ++i)
    EXPECT_EQ(rounded.compute(i).size(),
              rounded.specs()[i].is_vector() ? 0u : static_cast<std::size_t>(rounded.specs()[i].elements()));
  EXPECT_THROW(plain.gradient(0), Error);
}

TEST(Arena, ModelReadsWhatTheArenaHolds) {
  ModelRig<Host, bf16> rig(small_model(Family::qwen3));
  const auto& layer = rig.weights.layers[1];
  const auto q = rig.index("model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(layer.qkv.weight.data(), rig.arena.matrix(q));
  EXPECT_EQ(layer.qkv.weight.extent(0), 4u * 8 + 2 * 2 * 8);
  EXPECT_EQ(layer.qkv.weight.data() + 32 * 20, rig.arena.matrix(q + 1));
  EXPECT_EQ(layer.up.weight.extent(0), 28u);
  EXPECT_EQ(layer.q_norm.extent(0), 8u);
  EXPECT_EQ(layer.qkv.bias.size(), 0u);
  EXPECT_EQ(rig.gradients.head.data(), rig.arena.gradient(rig.index("lm_head.weight")).data());
  for (std::size_t i = 0; i < rig.arena.size(); ++i)
    for (std::size_t j = 0; j < rig.arena.compute(i).size(); ++j)
      ASSERT_EQ(rig.arena.compute(i)(j).bits, bf16(rig.arena.master(i)(j)).bits);
}

TEST(Initialise, DependsOnSeedNameAndIndexAlone) {
  const ModelConfig config = small_model(Family::gpt);
  const auto specs = tensor_specs(config);
  std::vector<TensorSpec> reversed;
  for (auto it = specs.rbegin(); it != specs.rend(); ++it) {
    reversed.push_back(*it);
    reversed.back().follows = false;
  }
  const Host host;
  const Arena<Host, float> a(specs, false), b(reversed, false), c(specs, false);
  initialise<Host, float>(host, a, config, 3);
  initialise<Host, float>(host, b, config, 3);
  initialise<Host, float>(host, c, config, 4);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = a.master(i), y = b.master(a.size() - 1 - i), z = c.master(i);
    const bool bias = specs[i].name.ends_with("bias");
    for (std::size_t j = 0; j < x.size(); ++j) {
      ASSERT_EQ(x(j), y(j)) << specs[i].name;
      if (specs[i].is_vector()) {
        ASSERT_EQ(x(j), bias ? 0.0f : 1.0f) << specs[i].name;
      } else {
        ASSERT_NE(x(j), z(j)) << specs[i].name;
      }
    }
    if (specs[i].is_vector()) continue;
    EXPECT_EQ(x(5), static_cast<float>(config.initializer_range * normal(stream_of(3, specs[i].name), 5)));
  }
}

}  // namespace
}  // namespace sestina

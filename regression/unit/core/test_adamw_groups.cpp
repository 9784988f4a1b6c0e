// AdamW over tensors: which rates a tensor gets, that merging neighbours changes nothing, and the clipping scale.
#include <gtest/gtest.h>

#include "core/optimizer/gradient_norm.hpp"
#include "core/optimizer/methods/adamw.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

TensorSpec matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
  TensorSpec spec;
  spec.name = name;
  spec.rows = rows;
  spec.cols = cols;
  return spec;
}

TensorSpec vector(const std::string& name, std::int64_t rows) {
  TensorSpec spec = matrix(name, rows, 1);
  spec.role = Role::vector;
  return spec;
}

TEST(Glob, StarsAndQuestionMarks) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("model.layers.*.mlp.*", "model.layers.11.mlp.up_proj.weight"));
  EXPECT_TRUE(glob_match("*norm*", "model.norm.weight"));
  EXPECT_TRUE(glob_match("layers.?.x", "layers.3.x"));
  EXPECT_FALSE(glob_match("layers.?.x", "layers.13.x"));
  EXPECT_FALSE(glob_match("*norm", "model.norm.weight"));
  EXPECT_FALSE(glob_match("", "a"));
}

TEST(Rates, VectorsDoNotDecayAndLaterGroupsWin) {
  OptimizerOptions options;
  options.adamw.weight_decay = 0.1;
  EXPECT_EQ(rates_of(vector("model.norm.weight", 4), options).weight_decay, 0);
  EXPECT_EQ(rates_of(matrix("lm_head.weight", 4, 4), options).weight_decay, 0.1);
  options.group = {{"*.weight", 2.0, 0.3}, {"lm_head*", 0.5, {}}};
  const TensorRates head = rates_of(matrix("lm_head.weight", 4, 4), options);
  EXPECT_EQ(head.lr, 0.5 * options.adamw.lr);
  EXPECT_EQ(head.weight_decay, 0.3);
  EXPECT_EQ(rates_of(matrix("other", 4, 4), options).lr, options.adamw.lr);
}

template <class Space>
class AdamWOf : public testing::Test {};
TYPED_TEST_SUITE(AdamWOf, reference::RunSpaces, reference::SpaceNames);

// Three tensors side by side, the middle one with another rate: each must move as if it were alone.
TYPED_TEST(AdamWOf, NeighboursAreUpdatedAsIfAlone) {
  using Space = TypeParam;
  using View = Kokkos::View<float*, typename Space::memory_space>;
  const std::vector<TensorSpec> specs = {matrix("a", 3, 5), matrix("b", 2, 5), matrix("c", 4, 4)};
  OptimizerOptions options;
  options.adamw = {0.1, 0.9, 0.95, 1e-8, 0.2};
  options.group = {{"b", 3.0, 0.0}};
  constexpr std::size_t total = 15 + 10 + 16;
  const View gradient("g", total), together("w", total), alone("w", total);
  reference::Array gradients(1, total), weights(1, total);
  for (std::size_t i = 0; i < total; ++i) {
    gradients(0, i) = 0.01f * static_cast<float>(i % 7) - 0.02f;
    weights(0, i) = 0.1f * static_cast<float>(i % 5);
  }
  reference::set_values(gradient, gradients);
  reference::set_values(together, weights);
  reference::set_values(alone, weights);
  const auto owned = [&](const View& weight, std::size_t t, std::size_t offset) {
    const auto n = static_cast<std::size_t>(specs[t].elements());
    return OwnedTensor<Space, float>{specs[t], {gradient.data() + offset, n}, {weight.data() + offset, n}, {}};
  };
  AdamW<Space, float> merged(Space{}, {owned(together, 0, 0), owned(together, 1, 15), owned(together, 2, 25)}, options);
  for (int t = 1; t <= 3; ++t) merged.step(Space{}, t, 0.5, 0.7);
  std::size_t offset = 0;
  for (std::size_t t = 0; t < specs.size(); ++t) {
    AdamW<Space, float> single(Space{}, {owned(alone, t, offset)}, options);
    for (int step = 1; step <= 3; ++step) single.step(Space{}, step, 0.5, 0.7);
    offset += static_cast<std::size_t>(specs[t].elements());
  }
  const reference::Array moved = reference::values_of(together);
  reference::expect_same(moved, reference::values_of(alone), "weights");
  EXPECT_NE(moved.values, weights.values);
  ASSERT_EQ(merged.state().size(), 6u);
  EXPECT_EQ(merged.state()[2].path, "/optimizer/b/momentum");
}

TEST(Clip, ScaleIsOneUpToTheNormAndOffAtZero) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_scale(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_scale(1.5, 1.0), 1.0 / (1.5 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_scale(1.0, 1.0), 1.0 / (1.0 + 1e-6));
  EXPECT_EQ(clip_scale(1e9, 0.0), 1.0);
}

}  // namespace
}  // namespace sestina

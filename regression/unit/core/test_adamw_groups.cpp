// AdamW over tensors: which rates a tensor gets, that merging neighbours changes nothing, and the clipping scale.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

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

// Numbers of a group reach what the elementwise rule updates; vectors decay where a group says so.
TEST(Rates, GroupsSetBetasEpsAndTheDecayOfVectors) {
  OptimizerOptions options;
  options.group.resize(2);
  options.group[0].match = "*norm*";
  options.group[0].weight_decay = 0.001;
  options.group[0].beta1 = 0.8;
  options.group[0].beta2 = 0.9;
  options.group[1].match = "*.norm.*";
  options.group[1].beta2 = 0.85;
  options.group[1].eps = 1e-10;
  const TensorRates norm = rates_of(vector("model.norm.weight", 4), options),
                    other = rates_of(vector("model.layers.0.input_layernorm.weight", 4), options),
                    head = rates_of(matrix("lm_head.weight", 4, 4), options);
  EXPECT_EQ(norm, (TensorRates{options.adamw.lr, 0.001, 0.8, 0.85, 1e-10}));
  EXPECT_EQ(other, (TensorRates{options.adamw.lr, 0.001, 0.8, 0.9, options.adamw.eps}));
  EXPECT_EQ(head, (TensorRates{options.adamw.lr, 0.1, 0.9, 0.95, options.adamw.eps}));
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
    return OwnedTensor<Space, float>{specs[t],
                                     Vector<const float, Space>(gradient.data() + offset, n),
                                     Vector<float, Space>(weight.data() + offset, n),
                                     {}};
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

// A slab of a tensor under AdamW by itself: rows [row, row + rows) and columns [col, col + cols). Gradients change from
// update to update.
template <class Space>
class Slab {
 public:
  using View = Kokkos::View<float*, typename Space::memory_space>;
  Slab(const OptimizerOptions& options, const TensorSpec& spec, std::int64_t row, std::int64_t rows, std::int64_t col,
       std::int64_t cols)
      : width_(spec.cols),
        row_(row),
        rows_(rows),
        col_(col),
        cols_(cols),
        gradient_("g", size()),
        weight_("w", size()) {
    OwnedTensor<Space, float> tensor{
        spec, Vector<const float, Space>(gradient_.data(), size()), Vector<float, Space>(weight_.data(), size()), {}};
    tensor.row_begin = row;
    tensor.row_end = row + rows;
    tensor.col_begin = col;
    tensor.col_end = col + cols;
    optimizer_ = std::make_unique<AdamW<Space, float>>(Space{}, std::vector{tensor}, options);
  }
  void step(int t) {
    reference::Array values(1, size());
    for_each([&](std::size_t here, std::int64_t whole) {
      values(0, here) = std::sin(0.3 * static_cast<double>(whole * t)) * std::exp2(-static_cast<double>(whole % 13));
    });
    reference::set_values(gradient_, values);
    optimizer_->step(Space{}, t, 1, 1);
  }
  // Weights to their places in the whole matrix.
  void put(reference::Array& whole) const {
    const reference::Array values = reference::values_of(weight_);
    for_each([&](std::size_t here, std::int64_t at) { whole.values[static_cast<std::size_t>(at)] = values(0, here); });
  }
  std::vector<StateField> state() const { return optimizer_->state(); }

 private:
  std::size_t size() const { return static_cast<std::size_t>(rows_ * cols_); }
  template <class Body>
  void for_each(const Body& body) const {
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j)
        body(static_cast<std::size_t>(i * cols_ + j), (row_ + i) * width_ + col_ + j);
  }
  std::int64_t width_, row_, rows_, col_, cols_;
  View gradient_, weight_;
  std::unique_ptr<AdamW<Space, float>> optimizer_;
};

// However a matrix is cut between rows, and between blocks of columns, its moments in 8 bits and its weights are the
// same bits; a cut through a block is an error of the program.
TYPED_TEST(AdamWOf, CutsBetweenBlocksChangeNoBit) {
  constexpr std::int64_t width = 50;
  const TensorSpec spec = matrix("w", 6, width);
  OptimizerOptions options;
  options.state_bits = 8;
  options.state_block = 16;
  Slab<TypeParam> whole(options, spec, 0, 6, 0, width);
  std::vector<Slab<TypeParam>> parts;
  for (const auto& [row, rows] : {std::pair<std::int64_t, std::int64_t>{0, 4}, {4, 2}})
    for (const auto& [col, cols] : {std::pair<std::int64_t, std::int64_t>{0, 32}, {32, width - 32}})
      parts.emplace_back(options, spec, row, rows, col, cols);
  for (int t = 1; t <= 5; ++t) {
    whole.step(t);
    for (auto& part : parts) part.step(t);
  }
  reference::Array one(6, width), together(6, width, 77);
  whole.put(one);
  for (const auto& part : parts) part.put(together);
  reference::expect_same(together, one, "weights");
  EXPECT_NE(one(0, 1), 0);
  const StateField scales = parts.back().state()[1];
  EXPECT_EQ(scales.path, "/optimizer/w/momentum_scales");
  EXPECT_EQ(scales.shape, (std::vector<std::int64_t>{6, 4}));
  EXPECT_EQ(scales.row_begin, 4);
  EXPECT_EQ(scales.col_begin, 2);
  EXPECT_EQ(scales.col_end, 4);
  EXPECT_EQ(scales.bytes(), 2u * 2 * sizeof(float));
  EXPECT_THROW(Slab<TypeParam>(options, spec, 0, 6, 0, 24), Error);
}

// The same of a vector whose moments are coded, as those of rotations may be: its numbers lie as in one row.
TYPED_TEST(AdamWOf, CutsBetweenBlocksOfAVectorChangeNoBit) {
  TensorSpec spec = matrix("w", 50, 1);
  spec.role = Role::vector;
  spec.coded_state = true;
  OptimizerOptions options;  // state_bits is of matrices
  options.state_block = 16;
  Slab<TypeParam> whole(options, spec, 0, 50, 0, 1), first(options, spec, 0, 32, 0, 1),
      rest(options, spec, 32, 18, 0, 1);
  for (int t = 1; t <= 5; ++t)
    for (Slab<TypeParam>* slab : {&whole, &first, &rest}) slab->step(t);
  reference::Array one(1, 50), together(1, 50, 77);
  whole.put(one);
  first.put(together);
  rest.put(together);
  reference::expect_same(together, one, "weights");
  EXPECT_NE(one(0, 1), 0);
  const StateField codes = rest.state()[0], scales = rest.state()[1];
  EXPECT_EQ(codes.path, "/optimizer/w/momentum_codes");
  EXPECT_EQ(codes.shape, std::vector<std::int64_t>{50});
  EXPECT_EQ(scales.shape, std::vector<std::int64_t>{4});
  EXPECT_EQ(scales.row_begin, 2);
  EXPECT_EQ(scales.row_end, 4);
  EXPECT_EQ(scales.bytes(), 2u * sizeof(float));
  EXPECT_THROW(Slab<TypeParam>(options, spec, 0, 24, 0, 1), Error);
}

}  // namespace
}  // namespace sestina

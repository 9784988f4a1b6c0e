// What must hold of a model as a whole, next to its gradients: recompute changes no bit, micro-batches add up, stages
// and slices of logits compose, documents are kept apart, hooks come in order, memory is what the plan says.
#include <gtest/gtest.h>

#include <cmath>

#include "core/layout/model_size.hpp"
#include "core/layout/tensor_spec.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/reference.hpp"

namespace sestina {
namespace {

// One model of each family, and a gpt with every switch set.
const std::vector<ModelConfig>& models() {
  static const std::vector<ModelConfig> all = {small_model(Family::llama),
                                               small_model(Family::olmo2),
                                               small_model(Family::qwen3),
                                               small_model(Family::gpt),
                                               contest_model(),
                                               small_model(Family::qwen3_moe),
                                               small_model(Family::mixtral)};
  return all;
}

template <class Rig>
void expect_same_gradients(const Rig& a, const Rig& b) {
  for (std::size_t i = 0; i < a.arena.size(); ++i) EXPECT_EQ(a.gradient(i), b.gradient(i)) << a.arena.specs()[i].name;
}

template <class T>
class ModelOf : public testing::Test {};
using ComputeTypes = testing::Types<float, bf16, double>;
TYPED_TEST_SUITE(ModelOf, ComputeTypes);

TYPED_TEST(ModelOf, RecomputeChangesNoBit) {
  for (const ModelConfig& config : models()) {
    ModelRig<Device, TypeParam> kept(config, 2, 9), again(config, 2, 9, true);
    EXPECT_LT(again.slot.bytes(), kept.slot.bytes());
    EXPECT_EQ(kept.loss_and_backward(0.1), again.loss_and_backward(0.1)) << name(config.family);
    expect_same_gradients(kept, again);
  }
}

TYPED_TEST(ModelOf, FirstMicroStepAssignsLaterOnesAdd) {
  for (const ModelConfig& config : models()) {
    ModelRig<Device, TypeParam> rig(config, 2, 5);
    rig.loss_and_backward(1);
    std::vector<std::vector<Acc<TypeParam>>> once;
    for (std::size_t i = 0; i < rig.arena.size(); ++i) once.push_back(rig.gradient(i));
    rig.loss_and_backward(1);  // assigns the same again
    for (std::size_t i = 0; i < rig.arena.size(); ++i) EXPECT_EQ(rig.gradient(i), once[i]) << rig.arena.specs()[i].name;
    rig.loss_and_backward(1, true);
    for (std::size_t i = 0; i < rig.arena.size(); ++i) {
      const auto twice = rig.gradient(i);
      double largest = 0, error = 0;
      for (std::size_t j = 0; j < twice.size(); ++j) {
        largest = std::max<double>(largest, std::abs(once[i][j]));
        error = std::max<double>(error, std::abs(twice[j] - 2 * once[i][j]));
      }
      EXPECT_LE(error, 1e-5 * largest)
          << rig.arena.specs()[i].name;  // sums in another order: some tens of eps of float
    }
  }
}

TEST(Model, TwoMicroBatchesMakeOneLargeBatch) {
  for (const ModelConfig& config : models()) {
    ModelRig<Device, double> whole(config, 4, 6), half(config, 2, 6);
    const auto in = whole.download(Vector<const std::int32_t, Device>(whole.tokens));
    const auto out = whole.download(Vector<const std::int32_t, Device>(whole.targets));
    const double scale = 1.0 / 24;
    const double loss = whole.loss_and_backward(scale);
    half.load({in.begin(), in.begin() + 12}, {out.begin(), out.begin() + 12});
    double sum = half.loss_and_backward(scale);
    half.load({in.begin() + 12, in.end()}, {out.begin() + 12, out.end()});
    sum += half.loss_and_backward(scale, true);
    EXPECT_NEAR(sum, loss, 1e-12 * loss);
    for (std::size_t i = 0; i < whole.arena.size(); ++i) {
      const auto a = whole.gradient(i), b = half.gradient(i);
      for (std::size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], b[j], 1e-12) << whole.arena.specs()[i].name;
    }
  }
}

TEST(Model, StagesComposeToTheWholeModel) {
  for (const ModelConfig& config : models()) {
    ModelRig<Device, float> whole(config), first(config, 2, 7, {0, 1}), last(config, 2, 7, {1, 2});
    const double loss = whole.loss_and_backward(0.5);
    first.forward();
    Kokkos::deep_copy(last.slot.layers[0].x, first.slot.output);
    EXPECT_EQ(last.loss_and_backward(0.5), loss);
    Kokkos::deep_copy(first.slot.gradient, last.slot.gradient);
    first.model.backward(first.weights, first.slot, false, first.gradients, first.hooks);
    for (const auto* stage : {&first, &last})
      for (std::size_t i = 0; i < stage->arena.size(); ++i) {
        const std::string& name = stage->arena.specs()[i].name;
        EXPECT_EQ(stage->gradient(i), whole.gradient(whole.index(name))) << name;
      }
  }
}

// Elements of a column shall not lie at multiples of 4 KB, nor rows at odd places.
TEST(Model, RowsOfWideActivationsAreApart) {
  EXPECT_EQ(row_stride(0), 0);
  EXPECT_EQ(row_stride(5), 8);
  EXPECT_EQ(row_stride(1016), 1016);
  for (const std::int64_t width : {1017, 1024, 3072, 100352}) EXPECT_EQ(row_stride(width) % 1024, 32) << width;
  ModelConfig config = small_model(Family::llama);
  config.intermediate_size = 512;
  ModelRig<Device, float> rig(config), again(config, 2, 7, true);
  for (const auto& layer : rig.slot.layers) {
    EXPECT_EQ(layer.up.extent(1), 1024u);
    EXPECT_EQ(layer.up.stride(0), 1056u);
    EXPECT_EQ(layer.qkv.stride(0),
              static_cast<std::size_t>(row_stride(static_cast<std::int64_t>(layer.qkv.extent(1)))));
  }
  EXPECT_EQ(rig.loss_and_backward(0.5), again.loss_and_backward(0.5));
  expect_same_gradients(rig, again);
}

// A checkpoint of a pipeline may take whole slots: what no pass writes must not be what memory held before.
TEST(Model, SlotsBeginAsZeros) {
  using Bytes = Kokkos::View<std::byte*, Device::memory_space>;
  const ModelRig<Device, float> rig(small_model(Family::llama));
  const std::size_t bytes = rig.slot.bytes();
  Kokkos::deep_copy(Bytes("before", bytes), std::byte{0xa5});
  const Activations<Device, float> slot = rig.model.make_slot();
  const auto held = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), Bytes(slot.data(), bytes));
  EXPECT_EQ(std::count(held.data(), held.data() + bytes, std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
}

// As on a device: products of a weight whose rows are no multiple of 8 elements go by way of copies whose rows are.
TYPED_TEST(ModelOf, OddRowsOfWeightsAreMultipliedFromCopies) {
  using T = TypeParam;
  for (const Family family : {Family::llama, Family::gpt, Family::olmo2}) {
    ModelConfig config = small_model(family);
    config.intermediate_size = 21;
    ModelPart part = model_part(config, 1, 0);
    const StorageWidth width{sizeof(T), sizeof(Acc<T>)};
    const std::size_t plain_bytes = scratch_bytes(part, 2, 9, width);
    part.aligns_rows = true;
    EXPECT_GE(scratch_bytes(part, 2, 9, width), plain_bytes);
    ModelRig<Device, T> plain(config, 2, 9), copied(part, 2, 9, all_layers(config), false);
    // Sums of at most 21 terms may be taken in another order, and what is rounded then goes through two layers.
    const double bound = 32 * reference::epsilon<T>;
    for (const bool accumulate : {false, true}) {
      const double loss = plain.loss_and_backward(1, accumulate);
      EXPECT_NEAR(copied.loss_and_backward(1, accumulate), loss, bound * std::abs(loss));
      for (std::size_t i = 0; i < plain.arena.size(); ++i) {
        const auto want = plain.gradient(i), found = copied.gradient(i);
        double largest = 0;
        for (const auto value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
        for (std::size_t j = 0; j < want.size(); ++j)
          ASSERT_NEAR(found[j], want[j], bound * largest) << plain.arena.specs()[i].name << " " << j;
      }
    }
  }
}

TEST(Model, SlicesOfLogitsMakeOneLoss) {
  ModelConfig config = small_model(Family::llama);
  config.vocab_size = 50021;
  ModelRig<Device, double> rig(config, 2, 150);
  ASSERT_LT(logit_rows(rig.model.part(), 300, sizeof(double)), 300);  // more than one slice, the last one shorter
  const double loss = rig.loss_and_backward(1.0);
  const auto targets = rig.download(Vector<const std::int32_t, Device>(rig.targets));
  const auto width = static_cast<std::size_t>(config.vocab_size);
  std::vector<double> head_column(width, 0);  // d loss / d (sum over d of one row of the head), from the logits
  const auto h = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), rig.slot.h);
  double expected = 0;
  for (std::size_t row = 0; row < 300; ++row) {
    const auto logits = rig.logits(static_cast<int>(row), 1);
    double total = 0, h_sum = 0;
    for (const double z : logits) total += std::exp(z);
    for (std::size_t j = 0; j < h.extent(1); ++j) h_sum += h(row, j);
    expected += std::log(total) - logits[static_cast<std::size_t>(targets[row])];
    for (std::size_t v = 0; v < width; ++v)
      head_column[v] += h_sum * (std::exp(logits[v]) / total - (static_cast<std::size_t>(targets[row]) == v));
  }
  EXPECT_NEAR(loss, expected, 1e-12 * expected * 300);
  const auto gradient = rig.gradient(rig.index("lm_head.weight"));
  const auto d = static_cast<std::size_t>(config.hidden_size);
  for (std::size_t v = 0; v < width; ++v) {
    double sum = 0;
    for (std::size_t j = 0; j < d; ++j) sum += gradient[v * d + j];
    ASSERT_NEAR(sum, head_column[v], 1e-10) << v;
  }
}

TEST(Model, DocumentsAreKeptApart) {
  ModelRig<Device, double> rig(small_model(Family::qwen3), 1, 8);
  rig.mask({0, 0, 0, 3, 3, 3, 3, 3});
  const auto run = [&](std::int32_t second_token) {
    rig.load({1, second_token, 3, 4, 5, 6, 7, 8}, std::vector<std::int32_t>(8, 1));
    rig.model.forward(rig.weights, rig.slot, rig.rows(), rig.first_key, rig.hooks);
    return rig.logits(0, 8);
  };
  const auto a = run(2), b = run(9);
  const auto width = static_cast<std::ptrdiff_t>(rig.config.vocab_size);
  EXPECT_NE(std::vector<double>(a.begin() + width, a.begin() + 3 * width),
            std::vector<double>(b.begin() + width, b.begin() + 3 * width));
  EXPECT_EQ(std::vector<double>(a.begin() + 3 * width, a.end()), std::vector<double>(b.begin() + 3 * width, b.end()));
}

TEST(Model, TargetsBelowZeroDoNotCount) {
  ModelRig<Device, double> rig(small_model(Family::llama), 1, 6);
  rig.load({1, 2, 3, 4, 5, 6}, {2, 3, 4, -1, -1, -1});
  const double part = rig.loss_and_backward(1);
  rig.load({1, 2, 3, 9, 9, 9}, {2, 3, 4, -1, -1, -1});  // causal: what comes later changes nothing
  EXPECT_DOUBLE_EQ(rig.loss(), part);
}

struct Recorder : BlockHooks {
  std::vector<int> forward, before, after;
  void before_forward(int block) override { forward.push_back(block); }
  void before_backward(int block) override { before.push_back(block); }
  void after_backward(int block) override { after.push_back(block); }
};

TEST(Model, HooksSeeEveryBlockInOrder) {
  ModelRig<Device, float> rig(small_model(Family::llama));
  Recorder recorder;
  rig.model.forward(rig.weights, rig.slot, rig.rows(), {}, recorder);
  rig.model.loss_and_backward(rig.weights, rig.slot, rig.targets, 1, false, rig.gradients, recorder);
  EXPECT_EQ(recorder.forward, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(recorder.before, (std::vector{3, 2, 1, 0}));
  EXPECT_EQ(recorder.after, recorder.before);
}

template <class T>
void expect_planned_bytes(const ModelConfig& config, bool recompute) {
  ModelRig<Device, T> rig(config, 3, 11, recompute);
  const StorageWidth width{sizeof(T), sizeof(Acc<T>)};
  const ModelSize size = model_size(config, all_layers(config), 3, 11, width, recompute, 0);
  EXPECT_EQ(size.parameters, parameter_count(config));
  EXPECT_EQ(size.weights, rig.arena.weight_bytes());
  EXPECT_EQ(size.master, rig.arena.master_bytes());
  EXPECT_EQ(size.gradients, rig.arena.gradient_bytes());
  EXPECT_EQ(size.activations, rig.slot.bytes());
  EXPECT_EQ(size.activations, rig.model.make_slot().bytes());
  EXPECT_LE(size.workspace, rig.model.workspace_bytes());  // the kernels' own comes on top
}

TEST(Model, TakesTheBytesOfThePlan) {
  for (const ModelConfig& config : models())
    for (const bool recompute : {false, true}) {
      expect_planned_bytes<float>(config, recompute);
      expect_planned_bytes<bf16>(config, recompute);
    }
}

TEST(Model, Bfloat16FollowsSinglePrecision) {
  for (ModelConfig config : models()) {
    config.initializer_range = 0.05;
    ModelRig<Device, float> exact(config, 4, 16);
    ModelRig<Device, bf16> rounded(config, 4, 16);
    const double scale = 1.0 / 64;
    EXPECT_NEAR(rounded.loss_and_backward(scale) * scale, exact.loss_and_backward(scale) * scale, 0.02)
        << name(config.family);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < exact.arena.size(); ++i) {
      const auto a = exact.gradient(i), b = rounded.gradient(i);
      for (std::size_t j = 0; j < a.size(); ++j) {
        difference += (a[j] - b[j]) * (a[j] - b[j]);
        size += a[j] * a[j];
      }
    }
    EXPECT_LT(std::sqrt(difference / size), 0.05)
        << name(config.family);  // eps of bf16 is 0.8 %, some ten roundings in a row
  }
}

}  // namespace
}  // namespace sestina

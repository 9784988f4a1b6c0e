#include "core/model/pass_probe.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "model_rig.hpp"

namespace sestina {
namespace {

constexpr int sequence_length = 7;
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

template <class T>
struct ProbeRig : ModelRig<Host, T> {
  PassProbe<Host, T> probe;
  struct Hooks final : BlockHooks {
    explicit Hooks(PassProbe<Host, T>& p) : probe(p) {}
    void after_forward(int block) override { probe.after_forward(block); }
    void after_backward(int block) override { probe.after_backward(block, true, true); }
    PassProbe<Host, T>& probe;
  } probing{probe};

  explicit ProbeRig(const ModelConfig& c, bool recompute = false)
      : ModelRig<Host, T>(c, 2, sequence_length, recompute),
        probe(this->exec, model_part(c, 1, 0), all_layers(c), this->arena, 0, sequence_length) {}
  // Runs both passes and returns what the probe found.
  std::optional<FirstBad> pass(double scale = 1, bool accumulate = false) {
    probe.look(true);
    probe.begin(this->slot, 3);
    this->model.forward(this->weights, this->slot, this->rows(), this->first_key, probing);
    this->model.loss_and_backward(this->weights, this->slot, this->targets, scale, accumulate, this->gradients,
                                  probing);
    return probe.found();
  }
  void spoil_weight(std::size_t tensor) {
    auto values = this->master(tensor);
    std::fill(values.begin(), values.end(), nan_value);
    this->set_master(tensor, values);
    this->arena.round_weights(this->exec);
  }
};

template <class T>
class PassDigests : public testing::Test {};
using Numbers = testing::Types<float, bf16>;
TYPED_TEST_SUITE(PassDigests, Numbers);

TEST(PassProbe, NamesTheLayerOfWeightsThatAreNotFinite) {
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt, Family::qwen3_moe})
    for (const bool recompute : {false, true}) {
      const std::size_t tensors = ProbeRig<float>(small_model(family)).arena.size();
      for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
        ProbeRig<float> rig(small_model(family), recompute);
        const TensorSpec& spec = rig.arena.specs()[tensor];
        if (spec.expert > 0) continue;  // one is enough
        ASSERT_FALSE(rig.pass());
        rig.spoil_weight(tensor);
        const std::optional<FirstBad> bad = rig.pass();
        ASSERT_TRUE(bad) << spec.name;
        EXPECT_EQ(bad->pass, spec.role == Role::head ? PassKind::loss : PassKind::forward) << spec.name;
        EXPECT_EQ(bad->micro, 3);
        if (spec.expert < 0) EXPECT_EQ(bad->sequence, 0);  // an expert has some of the tokens
        EXPECT_TRUE(std::isnan(bad->value));
        const std::string layer = spec.layer >= 0 ? fmt::format("model.layers.{}.", spec.layer) : "";
        EXPECT_TRUE(bad->layer.starts_with(layer)) << spec.name << ": " << bad->layer;
        const bool norm_of_branch = family == Family::olmo2 && spec.is_vector();  // it belongs to its half of the block
        if (spec.block > 0 && !norm_of_branch)
          EXPECT_TRUE(spec.name.starts_with(bad->layer + ".")) << spec.name << ": " << bad->layer;
      }
    }
}

TEST(PassProbe, NamesTheSequence) {
  ProbeRig<bf16> rig(small_model(Family::llama));
  std::vector<std::int32_t> in(2 * sequence_length, 1);
  in[sequence_length + 2] = 5;  // in the second sequence alone
  rig.load(in, std::vector<std::int32_t>(in.size(), 3));
  auto values = rig.master(0);
  values[5 * 20] = std::numeric_limits<float>::infinity();
  rig.set_master(0, values);
  rig.arena.round_weights(rig.exec);
  const std::optional<FirstBad> bad = rig.pass();
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->layer, "model.embed_tokens");
  EXPECT_EQ(bad->sequence, 1);
  EXPECT_EQ(bad->value, std::numeric_limits<double>::infinity());
}

TEST(PassProbe, FindsWhatBeginsInTheBackwardPass) {
  ProbeRig<float> rig(small_model(Family::llama));
  const std::optional<FirstBad> scaled = rig.pass(nan_value);
  ASSERT_TRUE(scaled);
  EXPECT_EQ(scaled->pass, PassKind::backward);
  EXPECT_EQ(scaled->layer, "model.norm");
  const std::size_t up = rig.index("model.layers.1.mlp.up_proj.weight");
  ASSERT_FALSE(rig.pass());
  rig.arena.gradient(up)(4) = nan_value;  // of the micro-batches before
  const std::optional<FirstBad> added = rig.pass(1, true);
  ASSERT_TRUE(added);
  EXPECT_EQ(added->pass, PassKind::backward);
  EXPECT_EQ(added->layer, "model.layers.1");
  EXPECT_EQ(added->tensor, "gradient of model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(added->sequence, -1);
}

// The digests of both passes, with whatever memory the slot had before; flip: in the forward pass.
template <class T>
std::vector<PassDigest> digests_of(const ModelConfig& config, bool recompute, int before,
                                   const std::optional<BitFlip>& flip = {}) {
  ProbeRig<T> rig(config, recompute);
  std::memset(rig.slot.data(), before, rig.slot.bytes());
  rig.probe.keep_digests(true);
  rig.probe.flip_in_forward(flip);
  rig.probe.begin(rig.slot, std::nullopt);
  rig.model.forward(rig.weights, rig.slot, rig.rows(), rig.first_key, rig.probing);
  rig.model.loss_and_backward(rig.weights, rig.slot, rig.targets, 1, false, rig.gradients, rig.probing);
  return rig.probe.digests();
}

// A rank that computes the same has the same digests, so none is of memory that no pass has written.
TYPED_TEST(PassDigests, AreThoseOfWhatThePassesCompute) {
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt, Family::qwen3_moe})
    for (const bool recompute : {false, true}) {
      const auto one = digests_of<TypeParam>(small_model(family), recompute, 0);
      const auto other = digests_of<TypeParam>(small_model(family), recompute, 0xff);
      ASSERT_EQ(one.size(), other.size());
      ASSERT_GT(one.size(), 2 * 8U);
      for (std::size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i].digests.size(), 2U);
        EXPECT_EQ(one[i].digests, other[i].digests) << one[i].layer << ": " << one[i].tensor;
      }
    }
}

// The first difference lies where the bits were flipped: in the stream after that attention, in one sequence.
TYPED_TEST(PassDigests, TellWhereAFlipBegan) {
  for (const Family family : {Family::llama, Family::olmo2, Family::gpt, Family::qwen3_moe})
    for (const bool recompute : {false, true})
      for (std::uint64_t place = 0; place < 8; ++place) {
        const BitFlip flip{place / 4, place, 2, 0, true};  // two layers
        const auto right = digests_of<TypeParam>(small_model(family), recompute, 0);
        const auto wrong = digests_of<TypeParam>(small_model(family), recompute, 0, flip);
        std::size_t i = 0;
        while (i < right.size() && right[i].digests == wrong[i].digests) ++i;
        ASSERT_LT(i, right.size());
        EXPECT_EQ(wrong[i].pass, PassKind::forward);
        EXPECT_EQ(wrong[i].layer, fmt::format("model.layers.{}.self_attn", place / 4));
        EXPECT_EQ(wrong[i].tensor, "output");
        EXPECT_NE(right[i].digests[0] == wrong[i].digests[0], right[i].digests[1] == wrong[i].digests[1]);
      }
}

TEST(PassProbe, SpoilsOneActivationOfOnePass) {
  ProbeRig<bf16> rig(small_model(Family::gpt));
  rig.probe.spoil_next_forward();
  const std::optional<FirstBad> bad = rig.pass();
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->pass, PassKind::forward);
  EXPECT_EQ(bad->layer, "model.layers.1.self_attn");
  EXPECT_EQ(bad->sequence, 0);
  EXPECT_FALSE(rig.pass());
}

}  // namespace
}  // namespace sestina

// Decoding with a cache against the plain way, which computes the whole window again for each token.
#include "core/decoder.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"

namespace sestina {
namespace {

struct DecoderKind {
  const char* name;
  ModelConfig config;
};

// All families, with every form of positions and heads that they know; windows of 300 positions, two tiles of products.
std::vector<DecoderKind> decoder_kinds() {
  std::vector<DecoderKind> all;
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt}) {
    ModelConfig c = small_model(family);
    c.vocab_size = 61;
    c.max_position_embeddings = 300;
    all.push_back({name(family), c});
  }
  ModelConfig scaled = all[0].config;
  scaled.rope_scaling = RopeScaling{};
  scaled.rope_scaling->original_max_position_embeddings = 64;
  scaled.tie_word_embeddings = true;
  scaled.num_key_value_heads = 1;
  all.push_back({"llama, scaled positions, tied, one key head", scaled});
  ModelConfig turned = all[3].config;
  turned.position =
      turned.position == ModelConfig::Position::learned ? ModelConfig::Position::rope : ModelConfig::Position::learned;
  all.push_back({"gpt, the other positions", turned});
  ModelConfig contest = contest_model();
  contest.vocab_size = 61;
  contest.max_position_embeddings = 300;
  all.push_back({"gpt, every switch", contest});
  return all;
}

// Rows of experts lie where their tokens' choices put them, not in the tiles of the full window.
std::vector<DecoderKind> decoder_kinds_within_rounding() {
  std::vector<DecoderKind> all = decoder_kinds();
  for (const Family family : {Family::qwen3_moe, Family::mixtral}) {
    ModelConfig c = small_model(family);
    c.vocab_size = 61;
    c.max_position_embeddings = 300;
    if (family == Family::qwen3_moe) c.shared_expert_intermediate_size = 8;
    all.push_back({name(family), c});
  }
  return all;
}

std::vector<std::int32_t> tokens_of(int n, int vocabulary, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(uniform(stream_of(seed, "tokens"), i) * vocabulary);
  return tokens;
}

// The plain way: a window of max_position_embeddings, all of it for each row of logits.
template <class T>
struct Plain {
  StageRig<Device, T> rig;
  Plain(const ModelConfig& c, bool deterministic)
      : rig(c, {1, static_cast<int>(c.max_position_embeddings), false, deterministic}, nullptr) {
    rig.stage.initialise(7);
    for (const StateField& field : rig.stage.model_fields()) {  // norms and biases off their ones and zeros
      std::vector<float> values(field.bytes() / sizeof(float));
      copy_to_host(rig.exec, field, values.data());
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] += static_cast<float>(0.1 * normal(stream_of(5, field.path), i));
      copy_from_host(rig.exec, field, values.data());
    }
    rig.stage.weights_changed();
  }
  std::vector<float> logits(std::vector<std::int32_t> tokens) {
    const auto row = static_cast<int>(tokens.size()) - 1;
    tokens.resize(static_cast<std::size_t>(rig.options.sequence) + 1, 0);
    rig.load(tokens.data());
    rig.forward();
    return rig.logits(row);
  }
  Decoder<Device, T> decoder(int sequences, int capacity, bool deterministic) const {
    return Decoder<Device, T>(Device{}, rig.stage.model().config(), rig.stage.weights(),
                              {sequences, capacity, deterministic});
  }
};

template <class D>
std::vector<float> row(D& decoder, int i) {
  const float* from = decoder.logits(i);
  return {from, from + decoder.config().vocab_size};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(square / size);
}

template <class T>
class DecoderOf : public testing::Test {};
using DecoderTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(DecoderOf, DecoderTypes);

// In deterministic mode, for prompts that end within, at and after a tile, up to the last position.
TYPED_TEST(DecoderOf, DeterministicDecodingEqualsTheFullWindowToTheBit) {
  if (!is_host<Device>) GTEST_SKIP() << "products on a device are not made of fixed tiles";
  for (const auto& [kind, config] : decoder_kinds()) {
    Plain<TypeParam> plain(config, true);
    for (const int prompt : {1, 37, 255, 256, 297}) {
      const int steps = std::min(3, 300 - prompt);
      auto decoder = plain.decoder(1, std::min(prompt + steps, 300), true);
      std::vector<std::int32_t> tokens = tokens_of(prompt, 61, 1);
      decoder.prefill(0, tokens.data(), prompt);
      for (int i = 0;; ++i) {
        ASSERT_EQ(row(decoder, 0), plain.logits(tokens)) << kind << ", position " << tokens.size() - 1;
        if (i == steps) break;
        tokens.push_back((i * 17 + 5) % 61);
        const int sequence = 0;
        decoder.step(1, &sequence, &tokens.back());
      }
    }
  }
}

// Otherwise within rounding, at most 1e-5 (fp32) or 3e-2 (bf16) of the size of the logits, and the same greedy tokens
// in fp32.
TYPED_TEST(DecoderOf, FollowsTheFullWindow) {
  const bool single = std::is_same_v<TypeParam, float>;
  const double tolerance = single ? 1e-5 : 3e-2;
  // In bf16 rounding may change the choice of an expert.
  for (const auto& [kind, config] : single ? decoder_kinds_within_rounding() : decoder_kinds()) {
    Plain<TypeParam> plain(config, false);
    for (const int prompt : {1, 37, 253}) {
      auto decoder = plain.decoder(1, prompt + 8, false);
      std::vector<std::int32_t> tokens = tokens_of(prompt, 61, 2);
      decoder.prefill(0, tokens.data(), prompt);
      for (int i = 0; i < 8; ++i) {
        const auto cached = row(decoder, 0), whole = plain.logits(tokens);
        ASSERT_LT(distance(cached, whole), tolerance) << kind << ", position " << tokens.size() - 1;
        const auto greedy = std::max_element(cached.begin(), cached.end()) - cached.begin();
        if (single) ASSERT_EQ(greedy, std::max_element(whole.begin(), whole.end()) - whole.begin()) << kind;
        tokens.push_back(static_cast<std::int32_t>(greedy));
        const int sequence = 0;
        decoder.step(1, &sequence, &tokens.back());
      }
    }
  }
}

// Sequences of different lengths side by side, some of which end earlier, give the bits that each gives alone.
TYPED_TEST(DecoderOf, SequencesDoNotSeeOneAnother) {
  for (const bool deterministic : {false, true})
    for (const auto& [kind, config] : decoder_kinds()) {
      Plain<TypeParam> plain(config, deterministic);
      const std::vector<int> prompts = {5, 1, 64, 31, 12, 3, 90};
      const int n = static_cast<int>(prompts.size()), steps = deterministic ? 2 : 6;
      auto together = plain.decoder(n, 96, deterministic);
      std::vector<std::vector<std::vector<float>>> alone(prompts.size());
      for (int s = 0; s < n; ++s) {
        const auto tokens = tokens_of(prompts[static_cast<std::size_t>(s)] + steps, 61, 10 + static_cast<unsigned>(s));
        auto decoder = plain.decoder(1, 96, deterministic);
        decoder.prefill(0, tokens.data(), prompts[static_cast<std::size_t>(s)]);
        together.prefill(s, tokens.data(), prompts[static_cast<std::size_t>(s)]);
        alone[static_cast<std::size_t>(s)].push_back(row(decoder, 0));
        EXPECT_EQ(row(together, 0), alone[static_cast<std::size_t>(s)][0]) << kind;
        const int first = 0;
        for (int i = 0; i < steps; ++i) {
          decoder.step(1, &first, &tokens[static_cast<std::size_t>(decoder.length(0))]);
          alone[static_cast<std::size_t>(s)].push_back(row(decoder, 0));
        }
      }
      for (int i = 0; i < steps; ++i) {
        std::vector<int> going;
        std::vector<std::int32_t> next;
        for (int s = n; s-- > 0;) {  // in another order, and ever fewer
          if ((s + i) % 5 == 4 || together.length(s) != prompts[static_cast<std::size_t>(s)] + i) continue;
          going.push_back(s);
          next.push_back(tokens_of(together.length(s) + 1, 61, 10 + static_cast<unsigned>(s)).back());
        }
        together.step(static_cast<int>(going.size()), going.data(), next.data());
        for (std::size_t r = 0; r < going.size(); ++r)
          EXPECT_EQ(row(together, static_cast<int>(r)),
                    alone[static_cast<std::size_t>(going[r])][static_cast<std::size_t>(i) + 1])
              << kind << ", sequence " << going[r] << ", step " << i;
      }
    }
}

TEST(Decoder, ACopyGoesOnLikeTheOriginal) {
  Plain<float> plain(decoder_kinds()[2].config, false);
  auto decoder = plain.decoder(3, 50, false);
  const auto tokens = tokens_of(20, 61, 3);
  decoder.prefill(1, tokens.data(), 20);
  decoder.copy(1, 2);
  const int both[] = {2, 1};
  const std::int32_t next[] = {4, 4};
  decoder.step(2, both, next);
  EXPECT_EQ(row(decoder, 0), row(decoder, 1));
  EXPECT_EQ(decoder.length(2), 21);
  EXPECT_EQ(decoder.length(0), 0);
}

TEST(Decoder, RefusesMoreThanItsCapacity) {
  Plain<float> plain(decoder_kinds()[0].config, false);
  auto decoder = plain.decoder(1, 4, false);
  const auto tokens = tokens_of(5, 61, 3);
  EXPECT_THROW(decoder.prefill(0, tokens.data(), 5), Error);
  decoder.prefill(0, tokens.data(), 4);
  const int sequence = 0;
  EXPECT_THROW(decoder.step(1, &sequence, tokens.data()), Error);
  EXPECT_THROW(
      (Decoder<Device, float>(Device{}, plain.rig.stage.model().config(), plain.rig.stage.weights(), {1, 301, false})),
      Error);
}

// Keys and values of all layers and places, in one allocation.
TEST(Decoder, CacheHasItsBytes) {
  ModelConfig c = decoder_kinds()[0].config;
  EXPECT_EQ(cache_bytes(c, {3, 50, false}, 2),
            2u * 2 * 3 * 50 * static_cast<std::size_t>(c.num_hidden_layers * c.num_key_value_heads * c.head_dim));
}

}  // namespace
}  // namespace sestina

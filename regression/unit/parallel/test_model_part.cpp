// A rank's part of a model against the cuts of its tensors.
#include "core/layout/rank_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/deck/options.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/plan.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

ModelConfig sized(Family family, std::int64_t kv, bool tied) {
  ModelConfig c = family_defaults(family);
  c.hidden_size = 20;
  c.intermediate_size = 24;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 8;
  c.num_key_value_heads = family == Family::gpt ? 8 : kv;
  c.head_dim = 6;
  c.vocab_size = 23;
  c.max_position_embeddings = 16;
  c.attention_bias = family != Family::olmo2;
  c.tie_word_embeddings = tied;
  return c;
}

constexpr Family families[] = {Family::llama, Family::olmo2, Family::qwen3, Family::gpt};

TEST(ModelPart, HasTheTensorsOfItsShard) {
  for (const Family family : families)
    for (const std::int64_t kv : {1, 2, 8})
      for (const int tp : {1, 2, 4, 8})
        for (int rank = 0; rank < tp; ++rank) {
          ModelConfig whole = sized(family, kv, kv == 2);
          if (kv == 8) whole.intermediate_size = 29;  // which no number of ranks divides
          ASSERT_TRUE(tensor_parallel_defects(whole, tp).empty());
          const ModelPart part = model_part(whole, tp, rank);
          const auto specs = tensor_specs(whole), own = tensor_specs(part.config);
          ASSERT_EQ(own.size(), specs.size());
          for (std::size_t i = 0; i < specs.size(); ++i) {
            const TensorSpec local = local_spec(specs[i], whole, tp, rank);
            EXPECT_EQ(own[i].name, local.name);
            EXPECT_EQ(own[i].rows, local.rows) << local.name << " on " << rank << " of " << tp;
            EXPECT_EQ(own[i].cols, local.cols) << local.name << " on " << rank << " of " << tp;
            EXPECT_EQ(own[i].follows, local.follows) << local.name;
            EXPECT_EQ(own[i].heads * part.config.head_dim, own[i].heads > 0 ? local.rows : 0) << local.name;
            if (local.name == "model.embed_tokens.weight") {
              EXPECT_EQ(part.vocabulary_begin, tensor_shard(specs[i], whole, tp, rank).begin);
              EXPECT_LE(local.rows, part.largest_vocabulary());
            }
          }
          EXPECT_EQ(part.config.num_attention_heads % part.config.num_key_value_heads, 0);
        }
}

// A deck may say how many bytes of logits there are at a time; parts of the vocabulary make the slices longer.
TEST(ModelPart, SlicesOfLogitsAreThoseOfTheDeck) {
  Options options;
  options.model = sized(Family::llama, 8, false);
  options.model.vocab_size = 1000;
  const auto rows = [&](int tp) {
    options.parallel.tp = tp;
    return logit_rows(part_of_rank(PlanInput(options), tp - 1), 100, sizeof(float));
  };
  EXPECT_EQ(rows(1), 100);              // 64 MiB on a host
  options.train.logit_bytes = 200'000;  // 50 rows of 4,000 bytes
  EXPECT_EQ(rows(1), 50);
  EXPECT_EQ(rows(2), 100);
  options.train.logit_bytes = 1;
  EXPECT_EQ(rows(4), 1);
}

// Units of 8 rows where the ranks do not divide a size that consists of them and each gets one, else of one row.
TEST(ModelPart, PartsOfTheMlpDifferByOneUnit) {
  for (const std::int64_t size : {7, 24, 25, 88, 5461, 11008})
    for (const int tp : {1, 2, 3, 5, 6, 7, 12}) {
      ModelConfig whole = sized(Family::llama, 1, false);
      whole.intermediate_size = size;
      whole.num_attention_heads = tp;
      EXPECT_EQ(tensor_parallel_defects(whole, tp).empty(), tp <= size) << size << " on " << tp;
      if (tp > size) continue;
      const std::int64_t unit = size % tp == 0 ? 0 : size % 8 == 0 && size / 8 >= tp ? 8 : 1;
      const std::int64_t first = model_part(whole, tp, 0).config.intermediate_size;
      std::int64_t least = first, sum = 0;
      for (int rank = 0; rank < tp; ++rank) {
        const std::int64_t part = model_part(whole, tp, rank).config.intermediate_size;
        EXPECT_LE(part, first) << size << " on " << tp;
        if (unit > 0) EXPECT_EQ(part % unit, 0) << size << " on " << tp;
        least = std::min(least, part);
        sum += part;
      }
      EXPECT_EQ(sum, size) << size << " on " << tp;
      EXPECT_EQ(first - least, unit) << size << " on " << tp;
    }
}

// Only a tensor that another rank holds too can have a partial gradient, and heads that are held once have none.
TEST(ModelPart, PartialGradientsAreThoseOfSharedTensors) {
  for (const Family family : families)
    for (const std::int64_t kv : {2, 8})
      for (const bool sequence_parallel : {false, true}) {
        const ModelConfig whole = sized(family, kv, false);
        for (const TensorSpec& spec : tensor_specs(whole)) {
          EXPECT_FALSE(gradient_is_partial(spec, whole, 1, sequence_parallel)) << spec.name;
          if (!gradient_is_partial(spec, whole, 4, sequence_parallel)) continue;
          bool shared = false;
          const TensorShard first = tensor_shard(spec, whole, 4, 0);
          for (int rank = 1; rank < 4; ++rank) {
            const TensorShard shard = tensor_shard(spec, whole, 4, rank);
            shared = shared || (shard.begin == first.begin && shard.end == first.end);
          }
          EXPECT_TRUE(shared) << spec.name;
        }
        const bool few_heads = family != Family::gpt && kv < 4;
        const auto partial = [&](const char* name) {
          ModelConfig with_biases = whole;
          with_biases.attention_bias = true;
          for (const TensorSpec& spec : tensor_specs(with_biases))
            if (spec.name == name) return gradient_is_partial(spec, whole, 4, sequence_parallel);
          return few_heads;  // this family has none
        };
        EXPECT_EQ(partial("model.layers.0.self_attn.k_proj.weight"), few_heads);
        EXPECT_EQ(partial("model.layers.0.self_attn.v_proj.bias"), few_heads);
        EXPECT_EQ(partial("model.layers.0.self_attn.k_norm.weight"), few_heads || family == Family::qwen3);
        EXPECT_EQ(partial("model.norm.weight"), sequence_parallel);
        EXPECT_FALSE(partial("model.layers.0.mlp.down_proj.weight"));
      }
}

// With sequence parallelism a rank keeps about its share of the activations.
TEST(ModelPart, DividesTheActivations) {
  const ModelConfig c = sized(Family::llama, 8, false);
  const auto bytes = [&](int tp, bool split) {
    return slot_bytes(model_part(c, tp, 0, split), all_layers(c), 4, 64, width_fp32, false);
  };
  EXPECT_LE(bytes(4, true), bytes(1, true) / 4 + bytes(1, true) / 40);  // narrow parts have rows of whole 16 bytes
  EXPECT_GT(bytes(4, false), bytes(4, true));
}

}  // namespace
}  // namespace sestina

// Text from a model on the ranks of a tensor-parallel group against the whole model, which every rank decodes by itself
// with the same weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "app/verbs/generation.hpp"
#include "kernels/base/random.hpp"
#include "parallel/stage/stages_of.hpp"
#include "parallel/step/decode_together.hpp"
#include "parallel/step/evaluator.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/mpi/ranks.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

struct DecodedModel {
  std::string name;
  ModelConfig config;
};

// Vocabularies of 61, and MLPs of 17, are uneven over 2 and 4 ranks; where there are fewer key heads than ranks,
// several hold each.
std::vector<DecodedModel> decoded_models() {
  std::vector<DecodedModel> all;
  const auto add = [&](const std::string& what, ModelConfig c) {
    c.intermediate_size = 16;
    c.vocab_size = 61;
    c.max_position_embeddings = 300;
    all.push_back({what, c});
  };
  for (const Family family : {Family::llama, Family::olmo2, Family::qwen3, Family::gpt})
    add(name(family), small_model(family));
  ModelConfig one_key_head = small_model(Family::llama);
  one_key_head.num_key_value_heads = 1;
  one_key_head.tie_word_embeddings = one_key_head.attention_bias = true;
  add("llama, one key head, tied, biases", one_key_head);
  ModelConfig learned = small_model(Family::gpt);
  learned.position = ModelConfig::Position::learned;
  learned.attention_bias = true;
  add("gpt, learned positions, biases", learned);
  add("gpt, every switch", contest_model());
  for (const Family family : {Family::llama, Family::gpt}) {
    add(fmt::format("{}, an MLP of 17", name(family)), small_model(family));
    all.back().config.intermediate_size = 17;
  }
  ModelConfig shared = small_model(Family::qwen3_moe);
  shared.moe_intermediate_size = 12;
  shared.shared_expert_intermediate_size = 8;
  add("qwen3_moe, a shared expert", shared);
  ModelConfig mixtral = small_model(Family::mixtral);
  mixtral.moe_intermediate_size = 16;  // as the intermediate size
  add("mixtral", mixtral);
  return all;
}

// Forward passes of a model on some ranks; its weights are functions of their places in the whole model, and none is
// the one or zero that norms and biases begin with.
template <class Exec, class T>
class DecodedPart {
 public:
  DecodedPart(const ModelConfig& config, std::unique_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {
    Options options;
    options.model = config;
    options.parallel.tp = ranks_->size();
    evaluator_ = std::make_unique<Evaluator>(StagesOf<Exec, T>(), options, PassOptions{}, *ranks_);
    evaluator_->stage().initialise(7);
    for (const StateField& field : evaluator_->model_fields()) disturb(field);
    evaluator_->weights_changed();
  }
  std::unique_ptr<TokenDecoder> decoder(const DecoderOptions& options) {
    return evaluator_->stage().make_decoder(options);
  }
  Communicator& ranks() { return *ranks_; }

 private:
  void disturb(const StateField& field) {
    std::vector<float> values(field.bytes() / sizeof(float));
    evaluator_->copy_to_host(field, values.data());
    const std::int64_t width = field.shape.size() > 1 ? field.shape[1] : 1, own = field.row_elements();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t place = (field.row_begin + at / own) * width + field.col_begin + at % own;
      values[i] += static_cast<float>(0.1 * normal(stream_of(5, field.path), static_cast<std::uint64_t>(place)));
    }
    evaluator_->copy_from_host(field, values.data());
  }

  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<Evaluator> evaluator_;
};

std::vector<std::int32_t> prompt_of(int count, std::uint64_t seed) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(uniform(stream_of(seed, "tokens"), i) * 61);
  return tokens;
}

std::vector<float> logits_of(TokenDecoder& decoder, int row) {
  const float* from = decoder.logits(row);
  return {from, from + decoder.config().vocab_size};
}

std::int32_t greedy_token(const std::vector<float>& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void expect_the_same_on_all_ranks(const std::vector<float>& logits, const std::string& what) {
  const std::size_t n = logits.size();
  std::vector<float> all(n * static_cast<std::size_t>(world().size()));
  world().all_gather(logits.data(), n * sizeof(float), all.data());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], logits[i % n]) << what << ", token " << i % n;
}

// Sums of up to some hundred products, in another order, through two layers: a hundred roundings of the largest logit.
void expect_close(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  double largest = 0;
  for (const float x : want) largest = std::max(largest, std::abs(static_cast<double>(x)));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 200 * std::numeric_limits<float>::epsilon() * largest) << what << ", token " << i;
}

// Ranks: DecoderRanks 2 4
template <class Space>
class DecoderRanks : public testing::Test {};
TYPED_TEST_SUITE(DecoderRanks, reference::RunSpaces, reference::SpaceNames);

// A prompt, then greedy tokens; the last prompt is longer than a tile of products.
TYPED_TEST(DecoderRanks, LogitsAreThoseOfOneRank) {
  for (const auto& [what, config] : decoded_models()) {
    DecodedPart<TypeParam, float> part(config, world().split(0, world().rank())),
        whole(config, make_lone_communicator());
    for (const bool deterministic : {false, true})
      for (const int prompt : {1, 12, 259}) {
        const DecoderOptions options{1, prompt + 4, deterministic};
        const auto together = part.decoder(options), alone = whole.decoder(options);
        std::vector<std::int32_t> tokens = prompt_of(prompt, 2);
        for (TokenDecoder* decoder : {together.get(), alone.get()}) decoder->prefill(0, tokens.data(), prompt);
        for (int made = 0;; ++made) {
          const std::string where = fmt::format("{}, position {}", what, tokens.size() - 1);
          const std::vector<float> got = logits_of(*together, 0), want = logits_of(*alone, 0);
          expect_close(got, want, where);
          expect_the_same_on_all_ranks(got, where);
          ASSERT_EQ(greedy_token(got), greedy_token(want)) << where;
          if (made == 3) break;
          tokens.push_back(greedy_token(want));
          const int sequence = 0;
          for (TokenDecoder* decoder : {together.get(), alone.get()}) decoder->step(1, &sequence, &tokens.back());
        }
      }
  }
}

// What is rounded to bf16 on the way differs by some of its roundings, on all ranks in the same way.
TYPED_TEST(DecoderRanks, RanksAgreeOnRoundedLogits) {
  for (const auto& [what, config] : decoded_models()) {
    DecodedPart<TypeParam, bf16> part(config, world().split(0, world().rank())),
        whole(config, make_lone_communicator());
    const auto together = part.decoder({1, 20, false}), alone = whole.decoder({1, 20, false});
    const std::vector<std::int32_t> tokens = prompt_of(12, 3);
    for (TokenDecoder* decoder : {together.get(), alone.get()}) decoder->prefill(0, tokens.data(), 12);
    const std::vector<float> got = logits_of(*together, 0), want = logits_of(*alone, 0);
    expect_the_same_on_all_ranks(got, what);
    double square = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      square += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(square / size), 3e-2) << what;
  }
}

// Prompts of several lengths, more than run at a time, two of them equal.
std::vector<Sequence> several_prompts() {
  return {{prompt_of(5, 1)}, {prompt_of(30, 2), 0}, {prompt_of(30, 2), 1}, {prompt_of(1, 3)}, {prompt_of(9, 4)}};
}

template <class Exec>
std::vector<Sequence> generated(DecodedPart<Exec, float>& model, const Generation& generation) {
  std::vector<Sequence> sequences = several_prompts();
  const auto own =
      model.decoder({3, decoder_capacity(decoded_models()[0].config, sequences, generation.tokens), false});
  decode_together(*own, model.ranks(), [&](TokenDecoder& decoder) {
    generate(decoder, generation, sequences, [&](std::size_t, std::int32_t token) { return token != 17; });
  });
  return sequences;
}

// Draws, ends and stops are the first rank's; the others, which are told of none, follow until it ends.
TYPED_TEST(DecoderRanks, TextIsThatOfOneRank) {
  const ModelConfig config = decoded_models()[0].config;
  DecodedPart<TypeParam, float> part(config, world().split(0, world().rank())), whole(config, make_lone_communicator());
  for (const double temperature : {0.0, 0.7}) {
    Generation generation;
    generation.sampling.temperature = temperature;
    generation.tokens = 24;
    generation.seed = 5;
    generation.ends = {11, 30};
    const std::vector<Sequence> got = generated(part, generation), want = generated(whole, generation);
    const std::vector<Sequence> given = several_prompts();
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].ids, world().rank() == 0 ? want[i].ids : given[i].ids) << i;
      if (world().rank() == 0) EXPECT_EQ(got[i].finish, want[i].finish) << i;
    }
  }
}

TYPED_TEST(DecoderRanks, AnErrorOfTheFirstRankLetsTheOthersGo) {
  const ModelConfig config = decoded_models()[0].config;
  DecodedPart<TypeParam, float> part(config, world().split(0, world().rank()));
  const auto own = part.decoder({1, 8, false});
  const auto diverge = [](TokenDecoder& decoder) {
    const std::int32_t token = 1;
    decoder.prefill(0, &token, 1);
    fail(ExitCode::diverged, "not finite");
  };
  for (int again = 0; again < 2; ++again) {  // agreed on, so the group goes on
    try {
      agree(world(), [&] { decode_together(*own, part.ranks(), diverge); });
      ADD_FAILURE() << "no error";
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.code(), ExitCode::diverged);
      EXPECT_STREQ(error.what(), "rank 0: not finite");
    }
    decode_together(*own, part.ranks(), [](TokenDecoder& decoder) { decoder.clear(0); });
  }
}

}  // namespace
}  // namespace sestina

// How the next token is picked from logits, and what becomes of several prompts side by side.
#include "app/verbs/generation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "kernels/base/random.hpp"
#include "parallel/stage/stages_of.hpp"
#include "parallel/step/evaluator.hpp"

namespace sestina {
namespace {

std::int32_t pick(const std::vector<float>& logits, const Sampling& sampling, double u,
                  const std::vector<std::int32_t>& context = {}) {
  return Sampler(static_cast<std::int64_t>(logits.size())).pick(logits.data(), sampling, context, u);
}

TEST(Sampler, ZeroTemperatureTakesTheLargest) { EXPECT_EQ(pick({0.1f, 3.0f, -2.0f}, {.temperature = 0}, 0.99), 1); }

TEST(Sampler, AShareOfZeroTakesTheLargest) {
  for (const double u : {0.0, 0.5, 0.999})
    for (const double share : {0.0, 1e-300}) {
      EXPECT_EQ(pick({0.1f, 3.0f, -2.0f, 3.0f}, {.temperature = 1, .top_p = share}, u), 1);
      EXPECT_EQ(pick({0.1f, 3.0f, -2.0f, 3.0f}, {.temperature = 1, .top_k = 3, .top_p = share}, u), 1);
    }
}

TEST(Sampler, NeverPicksWhatIsHidden) {
  const std::vector<float> logits = {1.0f, 9.0f, 2.0f, 8.0f, 1.5f};
  Sampler sampler(5, {1, 3});
  const auto pick_with = [&](const Sampling& sampling, double u) {
    return sampler.pick(logits.data(), sampling, {1, 2, 3}, u);
  };
  EXPECT_EQ(pick_with({.temperature = 0}, 0), 2);
  EXPECT_EQ(pick_with({.temperature = 0, .repetition_penalty = 1.5}, 0), 4);
  for (const Sampling s : {Sampling{1.0, 0, 1, 1}, {100.0, 0, 1, 1}, {100.0, 4, 1, 1}, {100.0, 0, 0.999999, 1.3}})
    for (double u = 0; u < 1; u += 0.01) {
      const std::int32_t token = pick_with(s, u);
      EXPECT_TRUE(token == 0 || token == 2 || token == 4) << token << " " << u;
    }
}

TEST(Sampler, FollowsTheProbabilities) {
  // Softmax of log(1), log(2), log(5): cumulative 1/8, 3/8, 1.
  const std::vector<float> logits = {0.0f, 0.6931472f, 1.6094379f};
  for (const auto& [u, token] : {std::pair{0.0, 0}, {0.12, 0}, {0.13, 1}, {0.37, 1}, {0.38, 2}, {0.999, 2}})
    EXPECT_EQ(pick(logits, {.temperature = 1}, u), token) << u;
}

TEST(Sampler, TopKHidesTheRest) {
  for (double u = 0.01; u < 1; u += 0.07)
    EXPECT_GE(pick({1.0f, 0.9f, 5.0f, 4.0f}, {.temperature = 2, .top_k = 2}, u), 2) << u;
}

// The filters as they are defined, in double and with everything sorted; the probabilities that are left.
std::vector<double> plain_probabilities(std::vector<float> logits, const Sampling& s,
                                        const std::vector<std::int32_t>& context) {
  for (const std::int32_t token : std::set<std::int32_t>(context.begin(), context.end())) {
    float& x = logits[static_cast<std::size_t>(token)];
    x = static_cast<float>(x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty);
  }
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  if (s.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(s.top_k)));
  std::vector<double> p(logits.size(), 0);
  double total = 0, held = 0;
  for (const std::size_t i : order) total += p[i] = std::exp((logits[i] - logits[order[0]]) / s.temperature);
  for (const std::size_t i : order) {
    if (held >= s.top_p * total) p[i] = 0;
    held += p[i];
  }
  const double rest = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= rest;
  return p;
}

TEST(Sampler, EqualsAPlainReference) {
  const std::vector<std::int32_t> context = {3, 8, 3, 199, 3};
  for (const Sampling s : {Sampling{1.0, 0, 0.9, 1},
                           {0.7, 0, 0.5, 1},
                           {1.5, 40, 0.8, 1},
                           {1.0, 0, 1e-9, 1},
                           {1.0, 0, 0.999999, 1.3},
                           {0.9, 10, 1, 0.5},
                           {2.0, 150, 0.97, 1.7}}) {
    for (std::uint64_t trial = 0; trial < 20; ++trial) {
      std::vector<float> logits(200);
      for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<float>(2 * normal(stream_of(trial, "logits"), i));
      const std::vector<double> p = plain_probabilities(logits, s, context);
      for (std::uint64_t draw = 0; draw < 20; ++draw) {
        const double u = uniform(stream_of(trial, "draws"), draw);
        double before = 0;  // the number lies in the part of [0, 1) that belongs to the token
        const auto token = static_cast<std::size_t>(pick(logits, s, u, context));
        for (std::size_t i = 0; i < token; ++i) before += p[i];
        ASSERT_GT(p[token], 0) << trial;
        ASSERT_GE(u, before - 1e-5) << trial;
        ASSERT_LE(u, before + p[token] + 1e-5) << trial;
      }
    }
  }
}

TEST(Sampler, RepetitionPenaltyCountsEachTokenOnce) {
  const Sampling greedy{.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(pick({3.0f, 2.0f, -1.0f}, greedy, 0, {0, 0, 0}), 1);  // 1.5, 2, -1
  EXPECT_EQ(pick({3.0f, 1.4f, -1.0f}, greedy, 0, {0, 0, 0}), 0);  // once: 1.5, not 0.375
  EXPECT_EQ(pick({-3.0f, -2.0f, -2.5f}, greedy, 0, {1}), 2);      // -3, -4, -2.5
}

ModelConfig tiny_model() {
  ModelConfig c = family_defaults(Family::llama);
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.vocab_size = 50;
  c.max_position_embeddings = 40;
  c.initializer_range = 0.3;
  return c;
}

// Forward passes of that model on one rank.
class Run {
 public:
  explicit Run(const PassOptions& setting) {
    Options options;
    options.model = tiny_model();
    evaluator_ = std::make_unique<Evaluator>(StagesOf<Host, float>(), options, setting, *alone_);
    evaluator_->stage().initialise(3);
    evaluator_->weights_changed();
  }
  Evaluator* operator->() { return evaluator_.get(); }

 private:
  std::unique_ptr<Communicator> alone_ = make_lone_communicator();
  std::unique_ptr<Evaluator> evaluator_;
};

struct Result {
  std::vector<Sequence> sequences;
  GenerationTimes times;
};

Result run(const std::vector<Sequence>& prompts, const Generation& generation, int side_by_side,
           bool deterministic = false, const std::function<bool(std::size_t, std::int32_t)>& emit = nullptr) {
  Run evaluator(PassOptions{});
  Result result{prompts, {}};
  const auto decoder = evaluator->stage().make_decoder(
      {side_by_side, decoder_capacity(tiny_model(), prompts, generation.tokens), deterministic});
  result.times = generate(
      *decoder, generation, result.sequences, emit ? emit : [](std::size_t, std::int32_t) { return true; });
  return result;
}

// As it was before there was a cache: the whole window for each token.
std::vector<std::int32_t> plain_generate(std::vector<std::int32_t> ids, const Generation& g) {
  Run evaluator({1, 40, false, true});
  std::vector<float> logits(50);
  for (int made = 0; made < g.tokens && ids.size() < 40; ++made) {
    std::vector<std::int32_t> window = ids;
    window.resize(41, 0);
    evaluator->loss({window.data(), nullptr});
    evaluator->logits(static_cast<int>(ids.size()) - 1, logits.data());
    ids.push_back(
        pick(logits, g.sampling, uniform(stream_of(g.seed, "generate"), static_cast<std::uint64_t>(made)), ids));
  }
  return ids;
}

TEST(Generate, EqualsTheWholeWindowTokenByToken) {
  for (const double temperature : {0.0, 1.0})
    for (const std::vector<std::int32_t>& prompt : {std::vector<std::int32_t>{7}, {1, 2, 3, 4, 5, 6, 7}, {9, 8, 7}}) {
      const Generation g{{temperature, 0, 0.9, 1.2}, 50, 4};
      const std::vector<std::int32_t> plain = plain_generate(prompt, g);
      EXPECT_EQ(plain.size(), 40u);
      for (const bool deterministic : {false, true}) {
        const Result result = run({{prompt}}, g, 1, deterministic);
        EXPECT_EQ(result.sequences[0].ids, plain) << temperature << " " << deterministic;
        EXPECT_EQ(result.sequences[0].finish, Finish::context);
      }
    }
}

TEST(Generate, PromptsSideBySideEqualEachAlone) {
  const std::vector<Sequence> prompts = {{{7}}, {{1, 2, 3, 4, 5, 6, 7}}, {{9, 8, 7}}, {{9, 8, 7}, 1}, {{9, 8, 7}, 2}};
  for (const int tokens : {0, 1, 12, 36}) {
    const Generation g{{1.0, 30, 0.95, 1.1}, tokens, 5};
    const Result together = run(prompts, g, 5), two = run(prompts, g, 2);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const Result alone = run({prompts[i]}, g, 1);
      EXPECT_EQ(together.sequences[i].ids, alone.sequences[0].ids) << i;
      EXPECT_EQ(two.sequences[i].ids, alone.sequences[0].ids) << i;
      EXPECT_EQ(together.sequences[i].finish, alone.sequences[0].finish) << i;
    }
  }
}

TEST(Generate, DrawsDependOnSeedAndSampleAlone) {
  const auto ids = [](std::uint64_t seed, int sample) {
    return run({{{1, 2, 3}, sample}}, {{1.0}, 20, seed}, 1).sequences[0].ids;
  };
  EXPECT_EQ(ids(1, 0), ids(1, 0));
  EXPECT_EQ(ids(1, 3), ids(1, 3));
  EXPECT_NE(ids(1, 0), ids(2, 0));
  EXPECT_NE(ids(1, 0), ids(1, 1));
  EXPECT_NE(ids(1, 1), ids(1, 2));
}

TEST(Generate, EndsWhereItShould) {
  const Generation greedy{{.temperature = 0}, 30, 1};
  const std::vector<std::int32_t> all = run({{{5, 6}}}, greedy, 1).sequences[0].ids;
  ASSERT_EQ(all.size(), 32u);
  EXPECT_EQ(run({{{5, 6}}}, greedy, 1).sequences[0].finish, Finish::length);

  Generation ends = greedy;
  ends.ends = {-1, all[6], 1000};
  const Result ended = run({{{5, 6}}}, ends, 1);
  EXPECT_EQ(ended.sequences[0].finish, Finish::end);
  const auto end = std::find(all.begin() + 2, all.end(), all[6]);
  EXPECT_EQ(ended.sequences[0].ids, std::vector<std::int32_t>(all.begin(), end));

  int calls = 0;
  const Result stopped = run({{{5, 6}}}, greedy, 1, false, [&](std::size_t, std::int32_t) { return ++calls < 4; });
  EXPECT_EQ(stopped.sequences[0].finish, Finish::stop);
  EXPECT_EQ(stopped.sequences[0].ids, std::vector<std::int32_t>(all.begin(), all.begin() + 6));
  EXPECT_EQ(stopped.times.new_tokens, 4);
  EXPECT_EQ(stopped.times.prompt_tokens, 2);

  const Result full = run({{std::vector<std::int32_t>(40, 1)}}, greedy, 1);
  EXPECT_EQ(full.sequences[0].finish, Finish::context);
  EXPECT_EQ(full.sequences[0].ids.size(), 40u);
  EXPECT_THROW(run({{std::vector<std::int32_t>(41, 1)}}, greedy, 1), Error);
}

}  // namespace
}  // namespace sestina

// Once every shape has been seen, drawing a token and taking it up allocates nothing.
#include <gtest/gtest.h>

#include "app/verbs/generation.hpp"
#include "core/decoder.hpp"
#include "core/stage.hpp"
#include "regression/unit/allocation_counter.hpp"

namespace sestina {
namespace {

template <class T>
void expect_no_allocation(bool deterministic) {
  ModelConfig c = family_defaults(Family::qwen3);
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 8;
  c.vocab_size = 50;
  c.max_position_embeddings = 64;
  Stage<Host, T> stage(Host{}, model_part(c, 1, 0), all_layers(c), {}, lone_layout(tensor_specs(c)), nullptr, false);
  stage.initialise(1);
  Decoder<Host, T> decoder(Host{}, c, stage.weights(), {2, 64, deterministic});
  Sampler sampler(c.vocab_size);
  const int both[] = {0, 1};
  std::vector<std::int32_t> tokens = {1, 2}, context = {1, 2, 3};
  for (const int i : both) decoder.prefill(i, context.data(), 3);
  const auto step = [&] {
    decoder.step(2, both, tokens.data());
    for (const std::size_t i : {0, 1})
      tokens[i] = sampler.pick(decoder.logits(static_cast<int>(i)), {1.0, 20, 0.9, 1.1}, context, 0.4);
  };
  for (int i = 0; i < 2; ++i) step();
  AllocationCounter counter;
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(counter.heap(), 0) << counter.places();
  EXPECT_EQ(counter.kokkos(), 0) << counter.places();
}

TEST(DecoderAllocation, StepsAllocateNothing) {
  for (const bool deterministic : {false, true}) {
    expect_no_allocation<float>(deterministic);
    expect_no_allocation<bf16>(deterministic);
  }
}

}  // namespace
}  // namespace sestina

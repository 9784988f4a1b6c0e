// What a run does before its first step: random weights, sample order, tokens from text.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"
#include "kernels/base/random.hpp"
#include "sestina_test_paths.hpp"

namespace sestina {
namespace {

void normal_weights(benchmark::State& state) {
  std::vector<float> weights(static_cast<std::size_t>(state.range(0)));
  const std::uint64_t stream = stream_of(1, "model.layers.0.mlp.up_proj.weight");
  for (auto _ : state) {
    normals(stream, 0, weights.size(), 0.02, weights.data());
    benchmark::DoNotOptimize(weights.data());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(normal_weights)->Arg(1 << 12)->Arg(1 << 20);

void sample_order(benchmark::State& state) {
  const std::uint64_t stream = stream_of(1, "epoch 0"), n = static_cast<std::uint64_t>(state.range(0));
  std::uint64_t index = 0;
  for (auto _ : state) benchmark::DoNotOptimize(permute(stream, index++ % n, n));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(sample_order)->Arg(1000)->Arg(1'000'003)->Arg(1'000'000'007);

std::string example_text() {
  std::ostringstream text;
  text << std::ifstream(SESTINA_SOURCE_DIR + "/README.md").rdbuf();
  std::string many;
  while (many.size() < (1 << 20)) many += text.str();
  return many;
}

void encode_text(benchmark::State& state) {
  const std::string text = example_text();
  TokenizerTraining training;
  training.vocab_size = 1024;
  training.threads = 1;
  const auto tokenizer = Tokenizer::parse(train_tokenizer({text}, training), "trained");
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(encode_text)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sestina

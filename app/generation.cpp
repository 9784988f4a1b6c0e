#include "app/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/random.hpp"

namespace sestina {

std::int32_t sample_token(std::vector<float>& logits, double temperature, int top_k, double u) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(largest - logits.begin());
  float threshold = -INFINITY;
  if (top_k > 0 && static_cast<std::size_t>(top_k) < logits.size()) {
    std::vector<float> sorted = logits;
    std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
    threshold = sorted[static_cast<std::size_t>(top_k) - 1];
  }
  const float top = *largest;
  double total = 0;
  for (float& x : logits) {
    x = x >= threshold ? static_cast<float>(std::exp((x - top) / temperature)) : 0.0f;
    total += x;
  }
  double left = u * total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= logits[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

template <class Exec, class T>
void generate(Session<Exec, T>& session, const Sampling& sampling, std::vector<std::int32_t>& ids,
              const std::function<void(std::int32_t)>& emit) {
  const auto length = static_cast<std::size_t>(session.setting().sequence);
  std::vector<std::int32_t> window(length + 1);
  std::vector<float> logits(static_cast<std::size_t>(session.config().vocab_size));
  const std::uint64_t stream = stream_of(sampling.seed, "generate");
  for (int made = 0; made < sampling.tokens; ++made) {
    const std::size_t used = std::min(ids.size(), length);
    std::fill(window.begin(), window.end(), 0);  // positions behind the last token are not seen: attention is causal
    std::copy(ids.end() - static_cast<std::ptrdiff_t>(used), ids.end(), window.begin());
    session.load(window.data(), nullptr);
    session.forward();
    session.logits(static_cast<int>(used) - 1, logits.data());
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
      fail(ExitCode::diverged, "the logits of token {} are not finite", ids.size());
    const std::int32_t token =
        sample_token(logits, sampling.temperature, sampling.top_k, uniform(stream, static_cast<std::uint64_t>(made)));
    if (token == sampling.end_of_document) return;
    ids.push_back(token);
    emit(token);
  }
}

#define SESTINA_GENERATE(Exec, T)                                                                 \
  template void generate<Exec, T>(Session<Exec, T>&, const Sampling&, std::vector<std::int32_t>&, \
                                  const std::function<void(std::int32_t)>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_GENERATE)

}  // namespace sestina

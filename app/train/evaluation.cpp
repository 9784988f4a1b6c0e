#include "app/train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

namespace sestina {

MeanError mean_error(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() < 2 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(squares / (n - 1) / n)};
}

template <class Exec, class T>
std::optional<Evaluation> evaluate_loss(Session<Exec, T>& session, const SampleSet& set, int batches,
                                        const std::function<bool()>& stop, const EvaluationShare& share) {
  const auto B = static_cast<std::size_t>(session.setting().micro_batch),
             length = static_cast<std::size_t>(session.setting().sequence);
  const std::uint64_t wanted = std::min<std::uint64_t>(static_cast<std::uint64_t>(batches) * B, set.windows());
  std::vector<std::int32_t> tokens(B * (length + 1)), first_key(B * length);
  std::vector<double> losses((wanted + B - 1) / B, 0.0), window_losses;
  std::vector<Acc<T>> token_losses(share.parts == 1 ? B * length : 0);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (stop()) return std::nullopt;
    if (i % static_cast<std::size_t>(share.parts) != static_cast<std::size_t>(share.part)) continue;
    const std::uint64_t sample = i * B;
    const std::size_t rows = std::min<std::uint64_t>(B, wanted - sample);
    for (std::size_t b = 0; b < rows; ++b) set.read(sample + b, &tokens[b * (length + 1)], &first_key[b * length]);
    for (std::size_t b = rows; b < B; ++b)  // a short last batch: targets of the missing rows do not count
      std::fill_n(&tokens[b * (length + 1)], length + 1, -1);
    session.load(tokens.data(), session.setting().mask_documents ? first_key.data() : nullptr);
    losses[i] = session.loss();
    if (share.parts != 1) continue;
    session.token_losses(token_losses.data());
    for (std::size_t b = 0; b < rows; ++b) {
      const auto begin = token_losses.begin() + static_cast<std::ptrdiff_t>(b * length);
      window_losses.push_back(std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(length), 0.0) /
                              static_cast<double>(length));
    }
  }
  if (share.sum) share.sum(losses);
  Evaluation result;
  result.tokens = wanted * length;
  result.window_losses = std::move(window_losses);
  result.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(result.tokens);
  if (set.bytes_per_token() > 0) result.bits_per_byte = result.loss / std::numbers::ln2 / set.bytes_per_token();
  return result;
}

#define SESTINA_EVALUATE(Exec, T)                                                                     \
  template std::optional<Evaluation> evaluate_loss<Exec, T>(Session<Exec, T>&, const SampleSet&, int, \
                                                            const std::function<bool()>&, const EvaluationShare&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EVALUATE)

}  // namespace sestina

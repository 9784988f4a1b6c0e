#include "app/train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "parallel/plan/block_turns.hpp"

namespace sestina {
namespace {

void read_sample(const SampleSet& set, std::uint64_t sample, std::int32_t* tokens, std::int32_t* first_key,
                 const std::function<void(const Error&)>& unreadable) {
  try {
    set.read(sample, tokens, first_key);
  } catch (const Error& error) {
    if (!unreadable) throw;
    unreadable(error);
    std::fill_n(tokens, set.sequence() + 1, 0);
    std::fill_n(first_key, set.sequence(), 0);
  }
}

}  // namespace

MeanError mean_error(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() < 2 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(squares / (n - 1) / n)};
}

void share_results(Evaluator& evaluator, std::vector<double>& results) {
  evaluator.grid().dp_group->all_reduce(results.data(), results.size(), Reduction::sum);
  evaluator.pipeline().all_reduce(results.data(), results.size(), Reduction::sum);
}

std::optional<Evaluation> evaluate_loss(Evaluator& evaluator, const SampleSet& set, int batches,
                                        const std::function<bool()>& stop,
                                        const std::function<void(const Error&)>& unreadable) {
  const ProcessGrid& grid = evaluator.grid();
  const auto B = static_cast<std::size_t>(evaluator.options().micro_batch),
             length = static_cast<std::size_t>(evaluator.options().sequence);
  const bool last = evaluator.has_last_stage();
  const ParallelOptions& parallel = evaluator.plan().input.parallel;
  const bool together = weights_in_turn(evaluator.plan().input) || parallel.ep > 1;  // a pass needs what all ranks own
  const auto dp = static_cast<std::size_t>(grid.dp), dp_rank = static_cast<std::size_t>(grid.dp_rank);
  const std::uint64_t wanted = std::min<std::uint64_t>(static_cast<std::uint64_t>(batches) * B, set.windows());
  std::vector<std::int32_t> tokens(B * (length + 1)), first_key(B * length);
  std::vector<double> losses((wanted + B - 1) / B, 0.0), window_losses(wanted, 0.0);
  std::vector<float> token_losses(B * length);
  for (std::size_t round = 0; round < losses.size(); round += dp) {
    if (stop()) return std::nullopt;
    const std::size_t i = round + dp_rank;
    const std::uint64_t sample = i * B;
    const std::size_t rows = i < losses.size() ? std::min<std::uint64_t>(B, wanted - sample) : 0;
    if (rows == 0 && !together) continue;
    for (std::size_t b = 0; b < rows; ++b)
      read_sample(set, sample + b, &tokens[b * (length + 1)], &first_key[b * length], unreadable);
    for (std::size_t b = rows; b < B; ++b)  // a short last batch: targets of the missing rows do not count
      std::fill_n(&tokens[b * (length + 1)], length + 1, -1);
    const double loss =
        evaluator.loss({tokens.data(), evaluator.options().mask_documents ? first_key.data() : nullptr});
    if (rows == 0) continue;
    losses[i] = loss;
    if (!last) continue;
    evaluator.token_losses(token_losses.data());
    for (std::size_t b = 0; b < rows; ++b) {
      const auto begin = token_losses.begin() + static_cast<std::ptrdiff_t>(b * length);
      window_losses[sample + b] =
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(length), 0.0) / static_cast<double>(length);
    }
  }
  share_results(evaluator, losses);
  share_results(evaluator, window_losses);
  Evaluation result;
  result.tokens = wanted * length;
  result.window_losses = std::move(window_losses);
  result.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(result.tokens);
  if (set.bytes_per_token() > 0) result.bits_per_byte = result.loss / std::numbers::ln2 / set.bytes_per_token();
  return result;
}

}  // namespace sestina

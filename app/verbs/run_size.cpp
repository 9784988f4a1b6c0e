#include "app/verbs/run_size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace sestina {
namespace {

// nanochat's batch of 2^19 tokens for a model of 12 layers of width 768: 12 tokens for each of its 110.1 M weights.
constexpr double tokens_per_weight = 12, best_batch = 524288, best_tokens = tokens_per_weight * 110.1e6;
constexpr double least_updates = 1000, epochs = 4;
constexpr int least_batch = 8, usual_batch = 32;  // sequences
// The rate and the decay of AdamW with which a model of width 256 trains well: 1000 updates of 32 sequences of 256.
constexpr double usual_lr = 1e-3, usual_decay = 0.1, usual_width = 256, usual_tokens = 32 * 256;
constexpr double smallest_decay = 0.01, largest_decay = 1;

double two_digits(double value) { return std::stod(fmt::format("{:.1e}", value)); }

}  // namespace

RunSize size_of_run(double weights, double text_tokens, int sequence_length, std::int64_t hidden_size) {
  const double sequence = sequence_length;
  RunSize size;
  const double of_text = text_tokens > 0 ? epochs * text_tokens : least_updates * usual_batch * sequence;
  const double most = tokens_per_weight * weights, least = least_updates * least_batch * sequence;
  size.tokens = std::max(std::min(of_text, most), least);
  size.limit = size.tokens == least ? "1000 updates of 8 sequences"
               : of_text > most     ? "12 for each weight in products"
               : text_tokens > 0    ? "the text four times"
                                    : "1000 updates of 32 sequences";
  const double best = best_batch * std::pow(size.tokens / best_tokens, 0.383);
  const double sequences = std::min(best, size.tokens / least_updates) / sequence;
  size.batch = std::max(least_batch, 1 << std::lround(std::log2(std::clamp(sequences, 1.0, 65536.0))));
  const double batch = size.batch * sequence;
  size.steps = static_cast<std::int64_t>(std::ceil(size.tokens / batch));
  const double grown = std::sqrt(batch / usual_tokens);
  size.lr = two_digits(usual_lr * grown * std::sqrt(usual_width / static_cast<double>(hidden_size)));
  size.weight_decay = two_digits(
      std::clamp(usual_decay * grown * least_updates * usual_tokens / size.tokens, smallest_decay, largest_decay));
  return size;
}

}  // namespace sestina

#include "app/verbs/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace sestina {

Sampler::Sampler(std::int64_t vocabulary, std::vector<std::int32_t> hidden)
    : hidden_(std::move(hidden)),
      scores_(static_cast<std::size_t>(vocabulary)),
      sorted_(scores_.size()),
      order_(scores_.size()),
      seen_(scores_.size()) {}

void Sampler::penalise(double penalty, const std::vector<std::int32_t>& context) {
  for (const std::int32_t token : context) {
    const auto at = static_cast<std::size_t>(token);
    if (seen_[at]) continue;  // once for each token, however often it occurs
    seen_[at] = true;
    scores_[at] = static_cast<float>(scores_[at] > 0 ? scores_[at] / penalty : scores_[at] * penalty);
  }
  for (const std::int32_t token : context) seen_[static_cast<std::size_t>(token)] = false;
}

float Sampler::top_k_threshold(int k) {
  if (k <= 0 || static_cast<std::size_t>(k) >= scores_.size()) return -INFINITY;
  std::copy(scores_.begin(), scores_.end(), sorted_.begin());
  std::nth_element(sorted_.begin(), sorted_.begin() + (k - 1), sorted_.end(), std::greater<>());
  return sorted_[static_cast<std::size_t>(k) - 1];
}

// Weights of all tokens become 0 but for the largest that together hold `share` of the total (Holtzman et al. 2020),
// the one that reaches it included; of equal ones those with smaller numbers come first. Few are sorted: ever more,
// until they are enough.
void Sampler::keep_share(double share, double total) {
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = scores_[static_cast<std::size_t>(a)], y = scores_[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::iota(order_.begin(), order_.end(), 0);
  const double wanted = share * total;
  double held = 0;
  std::size_t kept = 0, sorted = 0;
  while (sorted < order_.size() && (kept == 0 || held < wanted)) {  // a share of 0 keeps the largest
    const std::size_t next = std::min(order_.size(), std::max<std::size_t>(64, 4 * sorted));
    std::partial_sort(order_.begin() + static_cast<std::ptrdiff_t>(sorted),
                      order_.begin() + static_cast<std::ptrdiff_t>(next), order_.end(), before);
    sorted = next;
    while (kept < sorted && (kept == 0 || held < wanted)) held += scores_[static_cast<std::size_t>(order_[kept++])];
  }
  for (std::size_t i = kept; i < order_.size(); ++i) scores_[static_cast<std::size_t>(order_[i])] = 0;
}

std::int32_t Sampler::pick(const float* logits, const Sampling& sampling, const std::vector<std::int32_t>& context,
                           double u) {
  std::copy_n(logits, scores_.size(), scores_.begin());
  for (const std::int32_t token : hidden_) scores_[static_cast<std::size_t>(token)] = -INFINITY;
  if (sampling.repetition_penalty != 1) penalise(sampling.repetition_penalty, context);
  const auto largest = std::max_element(scores_.begin(), scores_.end());
  if (sampling.temperature <= 0) return static_cast<std::int32_t>(largest - scores_.begin());
  const float threshold = top_k_threshold(sampling.top_k), top = *largest;
  for (float& x : scores_) x = x >= threshold ? static_cast<float>(std::exp((x - top) / sampling.temperature)) : 0.0f;
  double total = std::accumulate(scores_.begin(), scores_.end(), 0.0);
  if (sampling.top_p < 1) {
    keep_share(sampling.top_p, total);
    total = std::accumulate(scores_.begin(), scores_.end(), 0.0);
  }
  double left = u * total;
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    left -= scores_[i];
    if (left < 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
}

}  // namespace sestina

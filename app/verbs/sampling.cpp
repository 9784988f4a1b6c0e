#include "app/verbs/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "io/tokenizer/tokenizer_text.hpp"

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
    if (seen_[at]) continue;  // each token counts once, however often it occurs
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

// Sets the weights of all tokens to 0 but for the largest that together hold `share` of the total (Holtzman et al.
// 2020), including the one that reaches it; among equals those with smaller numbers come first. A few are sorted at
// first, then ever more until they are enough.
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

namespace {

// Returns the length of the longest end of `text` that is the beginning of `stop`, but not all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t n = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, n))) --n;  // ends at n = 0 at the latest
  return n;
}

}  // namespace

std::vector<std::int32_t> Codec::encode(const std::string& text) const {
  if (tokenizer) return tokenizer->encode(text);
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string Codec::decode_bytes(const std::vector<std::int32_t>& ids) const {
  if (tokenizer) return tokenizer->decode_bytes(ids.data(), ids.size(), true);
  std::string text;
  for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
  return text;
}

std::string Codec::decode(const std::vector<std::int32_t>& ids) const { return repair_utf8(decode_bytes(ids)); }

std::vector<std::int32_t> Codec::unknown_ids(std::int64_t vocabulary) const {
  constexpr std::int64_t bytes = 256;
  std::vector<std::int32_t> ids;
  for (std::int64_t id = 0; id < vocabulary; ++id)
    if (tokenizer ? !tokenizer->has(id) : id >= bytes) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

std::string TextStream::push(std::int32_t id) {
  if (stopped_) return "";
  pending_ += codec_->decode_bytes({id});
  const std::size_t whole = pending_.size() - unfinished_utf8(pending_);
  held_ += repair_utf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  std::size_t end = std::string::npos, back = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    back = std::max(back, begun(held_, stop));
  }
  stopped_ = end != std::string::npos;
  const std::size_t certain = stopped_ ? end : held_.size() - back;
  std::string out = held_.substr(0, certain);
  held_.erase(0, stopped_ ? std::string::npos : certain);
  return out;
}

std::string TextStream::finish() {
  std::string rest = stopped_ ? "" : held_ + repair_utf8(pending_);
  held_.clear();
  pending_.clear();
  return rest;
}

}  // namespace sestina

#include "core/model/rope_table.hpp"

#include <cmath>
#include <numbers>

namespace sestina {
namespace {

double scaled(double frequency, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  if (turns > s.high_freq_factor) return frequency;
  if (turns < s.low_freq_factor) return frequency / s.factor;
  const double keep = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return keep * frequency + (1 - keep) * frequency / s.factor;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& c) {
  std::vector<double> frequencies(static_cast<std::size_t>(c.head_dim / 2));
  if (c.partial_rotary_factor < 1) {
    const auto turning = static_cast<std::size_t>(c.turning_pairs());
    for (std::size_t i = 0; i < turning; ++i)
      frequencies[i] = std::pow(c.rope_theta, -static_cast<double>(i) / static_cast<double>(turning - 1));
    return frequencies;
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double f = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim));
    frequencies[i] = c.rope_scaling ? scaled(f, *c.rope_scaling) : f;
  }
  return frequencies;
}

RopeTable rope_table(const ModelConfig& c, int sequence) {
  const std::vector<double> frequencies = rope_frequencies(c);
  RopeTable table;
  table.cosine.reserve(frequencies.size() * static_cast<std::size_t>(sequence));
  table.sine.reserve(table.cosine.capacity());
  for (int position = 0; position < sequence; ++position) {
    for (const double f : frequencies) {
      table.cosine.push_back(static_cast<float>(std::cos(position * f)));
      table.sine.push_back(static_cast<float>(std::sin(position * f)));
    }
  }
  return table;
}

}  // namespace sestina

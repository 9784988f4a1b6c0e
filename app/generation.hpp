// Sampling text from a model: one token at a time, each a pure function of (seed, position).
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/session.hpp"

namespace sestina {

struct Sampling {
  int tokens = 128;
  double temperature = 0.8;  // 0: the most likely token
  int top_k = 0;             // 0: all
  std::uint64_t seed = 1;
  std::int64_t end_of_document = -1;  // generation ends there; -1: never
};

// Appends to `ids` (not empty); each new token is given to `emit` as it comes. Context: the last T tokens of the
// session.
template <class Exec, class T>
void generate(Session<Exec, T>&, const Sampling&, std::vector<std::int32_t>& ids,
              const std::function<void(std::int32_t)>& emit);

// Picks from logits (overwritten): softmax at the temperature over the top_k largest; u in [0, 1).
std::int32_t sample_token(std::vector<float>& logits, double temperature, int top_k, double u);

}  // namespace sestina

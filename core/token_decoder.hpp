// The interface through which text is generated: several sequences, to which tokens are appended (decoder.hpp). No
// Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/deck/model_config.hpp"

namespace sestina {

struct DecoderOptions {
  int sequences = 1;  // S
  int capacity = 1;   // number of positions of each, at most max_position_embeddings
  bool deterministic = false;
};

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  // Appends tokens (host, count > 0, within the capacity) to a sequence that is empty; the logits of its last position
  // become row 0.
  virtual void prefill(int sequence, const std::int32_t* tokens, int count) = 0;
  // Appends one token to each of n different sequences, none of them empty; row i of the logits is sequences[i]'s.
  virtual void step(int n, const int* sequences, const std::int32_t* tokens) = 0;
  // Returns logits on the host (V, the vocabulary), valid until the next call; fences.
  virtual const float* logits(int row) = 0;
  // Makes sequence `to` equal to `from`.
  virtual void copy(int from, int to) = 0;
  virtual void clear(int sequence) = 0;
  virtual const ModelConfig& config() const = 0;
  virtual const DecoderOptions& options() const = 0;
};

}  // namespace sestina

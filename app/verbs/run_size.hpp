// The length, batch, rate and decay with which `sestina init` lets a run begin, from the sizes of model and text. The
// exponents are those of nanochat (scripts/base_train.py, 92d63d4), measured around 1.3e9 tokens: batch ~ D^0.383 for D
// tokens of a run, rate ~ batch^1/2, rate of elementwise rules ~ width^-1/2, and decay ~ batch^1/2 / D, so that weights
// forget over the same share of the data.
#pragma once
#include <cstdint>

namespace sestina {

struct RunSize {
  double tokens = 0;                // D
  const char* limit = "";           // what they follow from, for a comment
  int batch = 8;                    // sequences, a power of two
  std::int64_t steps = 0;           // updates
  double lr = 0, weight_decay = 0;  // of AdamW
};

// weights: of matrices in blocks and of the head. text_tokens: of the data, 0 where it is not known. A run goes through
// its text four times at most (arXiv 2305.16264: almost as good as new text), takes 12 tokens for each weight at most,
// and makes at least 1000 updates, of 8 sequences at least.
RunSize size_of_run(double weights, double text_tokens, int sequence_length, std::int64_t hidden_size);

}  // namespace sestina

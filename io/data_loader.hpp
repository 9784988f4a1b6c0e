// Batches of training windows. Which tokens sample i holds is a pure function of (seed, i) and the sources: sources are
// blended by weight, windows shuffled by epoch; ranks and resumes change nothing. Thread-safe reads; no Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/options.hpp"
#include "io/token_file.hpp"

namespace sestina {

// Host batch of B windows: tokens (B, T+1) row-major; first_key (B*T): for each position the first position of its own
// document inside the window (all 0 when documents are not masked).
struct Batch {
  int batch = 0, sequence = 0;
  std::vector<std::int32_t> tokens, first_key;
};

enum class Split { train, validation };

class SampleSet {
 public:
  // Opens all sources of the split. Windows are sequence + 1 tokens that overlap by one. Validation: [[data.validation]],
  // else the last validation_fraction of each training source (whole windows; training never reads them).
  SampleSet(const DataOptions&, Split, std::int64_t vocab_size, std::uint64_t seed, const Tokenizer*);
  ~SampleSet();

  std::uint64_t windows() const;                       // in one epoch over all sources (weights apart)
  void read(std::uint64_t sample, std::int32_t* tokens /*T+1*/, std::int32_t* first_key /*T*/) const;
  std::string description() const;                     // one line per source: path, tokens, windows, share
  double bytes_per_token() const;                      // for bits per byte; 0 when not known

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads ahead on one thread (signals blocked). next() hands over the batch of samples [cursor, cursor + B) and moves on.
class DataLoader {
 public:
  DataLoader(const SampleSet&, int batch, int sequence, std::uint64_t cursor);
  ~DataLoader();
  void next(Batch&);                                   // swaps buffers: allocates nothing after the first two calls
  std::uint64_t cursor() const;                        // first sample of the batch that next() will hand over

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina

// Batches of training windows. The tokens of sample i are a pure function of (seed, i) and the sources: sources are
// blended by weight, windows shuffled by epoch; ranks and resumes change nothing. Reads are thread-safe. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "io/tokens/token_file.hpp"

namespace sestina {

// A host batch of B windows of T tokens and their targets: tokens (B, T+1) row-major; first_key (B*T): for each
// position the first position of its own document inside the window (all 0 when documents are not masked). The end
// token between two documents is a target of the first and the first position of the second.
struct Batch {
  int batch = 0, sequence = 0;
  std::vector<std::int32_t> tokens, first_key;
};

enum class Split { train, validation };

class SampleSet {
 public:
  // Opens all sources of the split. Windows are sequence + 1 tokens that overlap by one. Validation:
  // [[data.validation]], else the last validation_fraction of each training source (whole windows; training never reads
  // them); without both an empty set. vocab_size 0: ids are not compared. marks, poll: see open_source(). Training
  // blends by weight and shuffles each source again in each epoch; validation reads every window once per epoch, always
  // in the same order. Error(bad_data): a source too short for one window; Error(bad_deck): weights, documents to be
  // masked where no end token is known.
  SampleSet(const DataOptions&, Split, std::int64_t vocab_size, std::uint64_t seed, const Tokenizer*,
            const DocumentMarks& marks = {}, const Poll& poll = {});
  ~SampleSet();
  SampleSet(SampleSet&&) noexcept;
  // Returns the validation split of a training set; shares its opened sources where it reads the same ones.
  SampleSet validation(const Tokenizer*, const Poll& poll = {}) const;

  int sequence() const;
  std::uint64_t windows() const;  // those of one epoch over all sources (without weights)
  void read(std::uint64_t sample, std::int32_t* tokens /*T+1*/, std::int32_t* first_key /*T*/) const;
  std::string description() const;  // one line per source: path, tokens, windows, share
  double bytes_per_token() const;   // for bits per byte; 0 when not known

 private:
  struct State;
  explicit SampleSet(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

// The batches that a rank reads, again and again: `count` in a row, then `skip` samples are left out, which other ranks
// read.
struct BatchPattern {
  int count = 1;
  std::uint64_t skip = 0;
};

// Reads ahead on one thread (signals blocked). next() hands over the batch of samples [cursor, cursor + B) and moves
// on, as the pattern says.
class DataLoader {
 public:
  // The set must outlive the loader. Error(bad_data) when it has fewer windows than a batch. Errors of reading are
  // thrown by the next call of next().
  DataLoader(const SampleSet&, int batch, int sequence, std::uint64_t cursor, BatchPattern = {});
  ~DataLoader();
  void next(Batch&);             // swaps buffers: allocates nothing after the first two calls
  std::uint64_t cursor() const;  // first sample of the batch that next() will hand over

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The window of a sample is a pure function of (seed, sample), without tables over samples.

// Deals samples out to sources by weight: a period of fixed length gives each source a whole number of slots (largest
// remainders) and spreads them evenly, so that any run of samples is close to the weights and a sample's place among
// its source's samples needs no counting.
class SourceBlend {
 public:
  explicit SourceBlend(
      const std::vector<double>& weights);  // Error(bad_deck): not positive, or below 1/55440 of the sum
  struct Place {
    std::size_t source;
    std::uint64_t ordinal;  // the number of the source's earlier samples
  };
  Place place(std::uint64_t sample) const;
  double share(std::size_t source) const;

 private:
  struct Slot {
    std::uint32_t source, rank;
  };
  std::vector<Slot> period_;
  std::vector<std::uint64_t> slots_;  // slots of each source in a period
};

// Returns the window, of `windows`, that the ordinal-th sample of a source reads: each once per epoch.
std::uint64_t window_of(std::uint64_t seed, std::size_t source, std::uint64_t ordinal, std::uint64_t windows,
                        bool shuffle);

}  // namespace sestina

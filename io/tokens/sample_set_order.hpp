// Which window a sample is: a pure function of (seed, sample), without tables over samples. No Kokkos.
#pragma once
#include <cstdint>
#include <vector>

namespace sestina {

// Deals samples out to sources by weight: a period of fixed length gives each source a whole number of slots (largest
// remainders) and spreads them evenly, so that any run of samples is close to the weights and a sample's place among
// its source's samples needs no counting.
class SourceBlend {
 public:
  explicit SourceBlend(
      const std::vector<double>& weights);  // Error(bad_deck): not positive, or below 1/55440 of the sum
  struct Place {
    std::size_t source;
    std::uint64_t ordinal;  // how many earlier samples the source had
  };
  Place place(std::uint64_t sample) const;
  double share(std::size_t source) const;

 private:
  struct Slot {
    std::uint32_t source, rank;
  };
  std::vector<Slot> period_;
  std::vector<std::uint64_t> slots_;  // of each source in a period
};

// Window that the ordinal-th sample of a source reads, of `windows`: each once per epoch.
std::uint64_t window_of(std::uint64_t seed, std::size_t source, std::uint64_t ordinal, std::uint64_t windows,
                        bool shuffle);

}  // namespace sestina

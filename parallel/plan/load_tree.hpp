// Loads of numbered bins under questions that a sort cannot answer while they change: the least one, and the first bin
// within a limit. Each takes log(bins). No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace sestina {

class LoadTree {
 public:
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();  // the bin does not take part

  explicit LoadTree(std::size_t bins) {
    while (leaves_ < bins) leaves_ *= 2;
    least_.assign(2 * leaves_, none);
  }
  void set(std::size_t bin, std::int64_t load) {
    std::size_t node = leaves_ + bin;
    least_[node] = load;
    for (node /= 2; node > 0; node /= 2) least_[node] = std::min(least_[2 * node], least_[2 * node + 1]);
  }
  std::int64_t least() const { return least_[1]; }
  // The lowest bin whose load is no more than `limit`; there must be one.
  std::size_t first_within(std::int64_t limit) const {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (least_[2 * node] <= limit ? 0 : 1);
    return node - leaves_;
  }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> least_;  // of the two below; node 1 is the root
};

}  // namespace sestina

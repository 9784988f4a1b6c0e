#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/layout/accumulation_tree.hpp"

namespace sestina {
namespace {

constexpr std::size_t tree_elements = 2500;  // more than one thread takes at a time, and no multiple of it

std::vector<float> gradients_of_micro(int micro) {
  std::vector<float> x(tree_elements);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sin(0.37 * double(i) + 1.7 * micro) * std::exp2(double((i + 3 * micro) % 11) - 5));
  return x;
}

// The sum of micro-batches [begin, end) by the definition of the tree: an aligned left half as large as can be, and the
// rest.
std::vector<float> plain_tree_sum(int begin, int end) {
  if (end - begin == 1) return gradients_of_micro(begin);
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  std::vector<float> left = plain_tree_sum(begin, begin + half);
  const std::vector<float> right = plain_tree_sum(begin + half, end);
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
  return left;
}

TEST(AccumulationTree, OnePassAddsWhatTheTreeAdds) {
  for (int micros = 1; micros <= 13; ++micros) {
    std::vector<std::vector<float>> levels(8, std::vector<float>(tree_elements));
    std::vector<float> result(tree_elements);
    for (int micro = 0; micro < micros; ++micro) {
      std::vector<float> own = gradients_of_micro(micro);
      const auto view = [](std::vector<float>& x) { return Vector<float, Host>(x.data(), x.size()); };
      const auto waiting = [&](int level) { return view(levels.at(static_cast<std::size_t>(level))); };
      add_in_tree<Host, float>(Host(), micro, micros, view(own), waiting, view(result));
      Kokkos::fence();
    }
    EXPECT_EQ(result, plain_tree_sum(0, micros)) << micros;
  }
}

}  // namespace
}  // namespace sestina

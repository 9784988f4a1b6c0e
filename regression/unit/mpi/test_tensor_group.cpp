// The operations of a tensor-parallel group against plain sums, and their bits against the tree on one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/blas/tree_sum.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "regression/unit/mpi/ranks.hpp"

namespace sestina {
namespace {

template <class T>
T value(int rank, std::size_t i) {
  return static_cast<T>(std::sin(1.0 + 0.37 * rank + 0.011 * static_cast<double>(i)));
}

// The tree over all ranks' vectors, computed here.
template <class T>
std::vector<T> expected_sum(int ranks, std::size_t n) {
  std::vector<T> own(n), others((static_cast<std::size_t>(ranks) - 1) * n), out(n);
  for (std::size_t i = 0; i < n; ++i) own[i] = value<T>(0, i);
  for (int r = 1; r < ranks; ++r)
    for (std::size_t i = 0; i < n; ++i) others[static_cast<std::size_t>(r - 1) * n + i] = value<T>(r, i);
  tree_sum<Host, T>(Host(), 0, ranks, Vector<const T, Host>(own.data(), n),
                    Vector<const T, Host>(others.data(), others.size()), Vector<T, Host>(out.data(), n));
  Host().fence();
  return out;
}

template <class T>
void check_group(std::size_t rows, std::size_t width) {
  TensorGroup<Host> group(world());
  const std::size_t n = rows * width;
  const std::vector<T> expected = expected_sum<T>(group.size(), n);
  std::vector<T> mine(n), part(n), whole(n, T(0.0f));
  for (std::size_t i = 0; i < n; ++i) mine[i] = value<T>(group.rank(), i);
  const auto first =
      static_cast<std::size_t>(first_row_of(static_cast<std::int64_t>(rows), group.size(), group.rank()));
  const auto end =
      static_cast<std::size_t>(first_row_of(static_cast<std::int64_t>(rows), group.size(), group.rank() + 1));

  const Matrix<T, Host> own(part.data(), end - first, width);
  std::vector<T> used = mine;
  group.scatter_sum(Host(), Matrix<T, Host>(used.data(), rows, width), own);
  Host().fence();
  for (std::size_t i = 0; i < own.size(); ++i) ASSERT_EQ(float(part[i]), float(expected[first * width + i])) << i;
  group.gather(Host(), Matrix<const T, Host>(own), Matrix<T, Host>(whole.data(), rows, width));
  Host().fence();
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(float(whole[i]), float(expected[i])) << i;

  group.sum(Host(), Vector<T, Host>(mine.data(), n));
  Host().fence();
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(float(mine[i]), float(expected[i])) << i;
}

// Ranks: TensorGroup 2 3 6

TEST(TensorGroup, SumsGathersAndScattersInTreeOrder) {
  for (const std::size_t rows : {1u, 5u, 12u, 700u}) {  // fewer rows than ranks; more elements than one round takes
    check_group<float>(rows, 9);
    check_group<bf16>(rows, 9);
    check_group<double>(rows, 9);
  }
}

TEST(TensorGroup, TakesTheLargest) {
  TensorGroup<Host> group(world());
  std::vector<float> x = {static_cast<float>(group.rank()), -static_cast<float>(group.rank()), 3};
  group.max(Host(), Vector<float, Host>(x.data(), x.size()));
  Host().fence();
  EXPECT_EQ(x, (std::vector<float>{static_cast<float>(group.size() - 1), 0, 3}));
  x = {group.rank() == 0 ? NAN : 1.0f};
  group.max(Host(), Vector<float, Host>(x.data(), 1));
  Host().fence();
  EXPECT_TRUE(std::isnan(x[0]));
}

// A rank that sums four leaves by itself, and two ranks of two, or four of one, arrive at the same bits.
TEST(TensorGroup, ContinuesTheTreeOfOneRank) {
  const std::size_t n = 1000;
  const std::vector<float> all = expected_sum<float>(4, n), left = expected_sum<float>(2, n);
  std::vector<float> a(n), b(n);
  for (std::size_t i = 0; i < n; ++i) {
    a[i] = value<float>(2, i);
    b[i] = value<float>(3, i);
  }
  const auto view = [&](std::vector<float>& x) { return Vector<float, Host>(x.data(), n); };
  add_to<Host, float>(Host(), view(b), view(a));
  std::vector<float> out = left;
  add_to<Host, float>(Host(), view(a), view(out));
  Host().fence();
  EXPECT_EQ(out, all);
}

}  // namespace
}  // namespace sestina

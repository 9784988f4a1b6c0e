// The operations of a tensor-parallel group against plain sums, and their bits against the tree on one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/blas/sums.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "regression/unit/mpi/training_rig.hpp"

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

// Values of this rank in the memory of a space.
template <class T, class Exec>
Kokkos::View<T*, typename Exec::memory_space> mine_there(int rank, std::size_t n) {
  const Kokkos::View<T*, typename Exec::memory_space> there("mine", n);
  const auto here = Kokkos::create_mirror_view(there);
  for (std::size_t i = 0; i < n; ++i) here(i) = value<T>(rank, i);
  Kokkos::deep_copy(there, here);
  return there;
}

template <class T, class View>
void expect_values(const View& got, const std::vector<T>& expected, std::size_t first) {
  typename View::execution_space().fence();
  const auto here = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), got);
  for (std::size_t i = 0; i < here.size(); ++i) ASSERT_EQ(float(here(i)), float(expected[first + i])) << i;
}

template <class T, class Exec>
void check_group(std::size_t rows, std::size_t width) {
  const auto ranks = tensor_ranks<Exec>();
  TensorGroup<Exec> group(*ranks);
  const std::size_t n = rows * width;
  const std::vector<T> expected = expected_sum<T>(group.size(), n);
  const auto row = [&](int rank) {
    return static_cast<std::size_t>(first_row_of(static_cast<std::int64_t>(rows), group.size(), rank));
  };
  const std::size_t first = row(group.rank()), end = row(group.rank() + 1);
  const auto mine = mine_there<T, Exec>(group.rank(), n), used = mine_there<T, Exec>(group.rank(), n);
  const Kokkos::View<T*, typename Exec::memory_space> part("part", (end - first) * width), whole("whole", n);

  const Matrix<T, Exec> own(part.data(), end - first, width);
  group.scatter_sum(Exec(), Matrix<T, Exec>(used.data(), rows, width), own);
  expect_values(part, expected, first * width);
  group.gather(Exec(), Matrix<const T, Exec>(own), Matrix<T, Exec>(whole.data(), rows, width));
  expect_values(whole, expected, 0);
  group.sum(Exec(), Vector<T, Exec>(mine.data(), n));
  expect_values(mine, expected, 0);
}

// Ranks: TensorGroups 2 3 6
template <class Space>
class TensorGroups : public testing::Test {};
TYPED_TEST_SUITE(TensorGroups, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(TensorGroups, SumsGathersAndScattersInTreeOrder) {
  for (const std::size_t rows : {1u, 5u, 12u, 700u}) {  // fewer rows than ranks; more elements than one round takes
    check_group<float, TypeParam>(rows, 9);
    check_group<bf16, TypeParam>(rows, 9);
    check_group<double, TypeParam>(rows, 9);
  }
}

TYPED_TEST(TensorGroups, TakesTheLargest) {
  const auto ranks = tensor_ranks<TypeParam>();
  TensorGroup<TypeParam> group(*ranks);
  const auto largest = [&](std::vector<float> values) {
    const Kokkos::View<float*, typename TypeParam::memory_space> x("x", values.size());
    Kokkos::deep_copy(x, Kokkos::View<const float*, Kokkos::HostSpace>(values.data(), values.size()));
    group.max(TypeParam(), x);
    return host_values<TypeParam>(x.data(), static_cast<std::int64_t>(x.size()));
  };
  const auto r = static_cast<float>(group.rank());
  EXPECT_EQ(largest({r, -r, 3}), (std::vector<double>{static_cast<double>(group.size() - 1), 0, 3}));
  EXPECT_TRUE(std::isnan(largest({group.rank() == 0 ? NAN : 1.0f})[0]));
}

// A rank that sums four leaves by itself, and two ranks of two, or four of one, arrive at the same bits.
TYPED_TEST(TensorGroups, ContinueTheTreeOfOneRank) {
  const std::size_t n = 1000;
  const std::vector<float> all = expected_sum<float>(4, n), left = expected_sum<float>(2, n);
  const auto a = mine_there<float, TypeParam>(2, n), b = mine_there<float, TypeParam>(3, n),
             out = mine_there<float, TypeParam>(0, n);
  Kokkos::deep_copy(out, Kokkos::View<const float*, Kokkos::HostSpace>(left.data(), n));
  add_to<TypeParam, float>(TypeParam(), b, a);
  add_to<TypeParam, float>(TypeParam(), a, out);
  expect_values(out, all, 0);
}

}  // namespace
}  // namespace sestina

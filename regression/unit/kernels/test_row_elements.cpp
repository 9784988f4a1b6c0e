// Passes over rows in pieces of 16 bytes, as teams of a device make them, here on teams of host threads: against plain
// loops, whose values they must have exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/blas/row_elements.hpp"

namespace sestina {
namespace {

using Teams = Kokkos::TeamPolicy<Host>;
using Team = Teams::member_type;

// Numbers that bf16 holds, which begin `skip` elements behind a multiple of 16 bytes.
template <class T>
class Row {
 public:
  Row(int n, int skip, int first) : values_(static_cast<std::size_t>(n + skip + 16), T(-7.0f)) {
    void* at = values_.data();
    std::size_t space = values_.size() * sizeof(T);
    begin_ = static_cast<T*>(std::align(16, sizeof(T), at, space)) + skip;
    for (int j = 0; j < n; ++j) begin_[j] = T(static_cast<float>((first + 5 * j) % 31 - 15) / 4);
  }
  T* data() { return begin_; }
  float operator[](int j) const { return static_cast<float>(begin_[j]); }

 private:
  std::vector<T> values_;
  T* begin_;
};

// Calls body(team) for one team of as many threads as there are.
template <class Body>
void on_team(const Body& body) {
  Kokkos::parallel_for(Teams(1, Kokkos::AUTO), body);
  Kokkos::fence();
}

const std::vector<int> lengths = {0, 1, 7, 8, 9, 16, 37, 512};

template <class T>
class RowElements : public testing::Test {};
using RowTypes = testing::Types<float, bf16, double>;
TYPED_TEST_SUITE(RowElements, RowTypes);

TYPED_TEST(RowElements, AreWhatSingleOnesWouldBe) {
  using T = TypeParam;
  for (const int n : lengths) {
    for (const int skip : {0, 1, 3}) {
      Row<T> x(n, skip, 1), sum(n, 0, 2), out(n, skip, 3);
      Row<float> w(n, 0, 4);
      std::vector<float> before, after;
      for (int j = 0; j < n; ++j) {
        before.push_back(sum[j]);
        after.push_back(sum[j] + x[j] * w[j]);
      }
      const T* const in = x.data();
      const float* const of = w.data();
      on_team([=, sum = sum.data(), out = out.data()](const Team& team) {
        each_element(
            team, n,
            [](const T& a, float b, T& total, T& old) {
              old = total;
              total = T(static_cast<float>(total) + static_cast<float>(a) * b);
            },
            in, of, sum, Written(out));
      });
      for (int j = 0; j < n; ++j) {
        EXPECT_EQ(sum[j], static_cast<float>(T(after[static_cast<std::size_t>(j)]))) << n << " " << skip << " " << j;
        EXPECT_EQ(out[j], before[static_cast<std::size_t>(j)]) << n << " " << skip << " " << j;
      }
      EXPECT_EQ(sum[n], -7.0f) << "behind a row of " << n;
      EXPECT_EQ(out[n], -7.0f) << "behind a row of " << n;
    }
  }
}

// In place: what a piece reads is not what it has written.
TYPED_TEST(RowElements, MayBeWrittenWhereTheyAreRead) {
  using T = TypeParam;
  static constexpr int n = 45;
  Row<T> x(n, 0, 1), y(n, 0, 9);
  std::vector<float> difference, sum;
  for (int j = 0; j < n; ++j) {
    difference.push_back(x[j] - y[j]);
    sum.push_back(x[j] + y[j]);
  }
  on_team([a = x.data(), b = y.data()](const Team& team) {
    each_element(
        team, n,
        [](const T& p, const T& q, T& minus, T& plus) {
          const float first = static_cast<float>(p), second = static_cast<float>(q);
          minus = T(first - second);
          plus = T(first + second);
        },
        static_cast<const T*>(a), static_cast<const T*>(b), Written(a), Written(b));
  });
  for (int j = 0; j < n; ++j) {
    EXPECT_EQ(x[j], difference[static_cast<std::size_t>(j)]) << j;
    EXPECT_EQ(y[j], sum[static_cast<std::size_t>(j)]) << j;
  }
}

TYPED_TEST(RowElements, OfGroupsAreThoseOfEach) {
  using T = TypeParam;
  for (const int n : {4, 8, 12, 32}) {
    static constexpr int groups = 3;
    Row<T> x(2 * groups * n, 0, 1);
    Row<float> w(n, 0, 2);
    std::vector<float> want;
    for (int j = 0; j < 2 * groups * n; ++j) want.push_back(j % (2 * n) < n ? x[j] * w[j % n] : x[j]);
    on_team([n, rows = x.data(), of = w.data()](const Team& team) {
      each_element_of_groups(
          team, groups, n, [](float b, T& a) { a = T(static_cast<float>(a) * b); }, GroupRows(of, 0),
          GroupRows(rows, 2 * n));
    });
    for (int j = 0; j < 2 * groups * n; ++j)
      EXPECT_EQ(x[j], static_cast<float>(T(want[static_cast<std::size_t>(j)]))) << n << " " << j;
  }
}

TYPED_TEST(RowElements, AreSummedOnce) {
  using T = TypeParam;
  for (const int n : lengths) {
    for (const int skip : {0, 1}) {
      Row<T> x(n, skip, 1), y(n, 0, 2);
      float want = 0, found = -1;  // of multiples of 1/16 below 2^24: exact in any order
      for (int j = 0; j < n; ++j) want += x[j] * y[j];
      const T *const a = x.data(), *const b = y.data();
      on_team([=, to = &found](const Team& team) {
        const float sum = sum_each<float>(
            team, n, [](const T& p, const T& q) { return static_cast<float>(p) * static_cast<float>(q); }, a, b);
        if (team.team_rank() == 0) *to = sum;
      });
      EXPECT_EQ(found, want) << n << " " << skip;
    }
  }
}

struct Largest {
  float value = -1000;
  int count = 0;
  KOKKOS_FUNCTION void add(float x) { join({x, 1}); }
  KOKKOS_FUNCTION void join(const Largest& other) {
    value = Kokkos::max(value, other.value);
    count += other.count;
  }
};

TYPED_TEST(RowElements, AreReducedOnce) {
  using T = TypeParam;
  for (const int n : lengths) {
    Row<T> x(n, n % 2, 1);
    float want = -1000;
    for (int j = 0; j < n; ++j) want = std::max(want, x[j]);
    Largest found;
    on_team([to = &found, a = static_cast<const T*>(x.data()), n](const Team& team) {
      const Largest part = reduce_each<Largest>(team, n, a);
      if (team.team_rank() == 0) *to = part;
    });
    EXPECT_EQ(found.value, want) << n;
    EXPECT_EQ(found.count, n);
  }
}

TEST(RowElementsOnHost, HaveTheBitsOfPlainLoops) {
  constexpr int n = 77;
  Row<bf16> x(n, 1, 1), to(n, 0, 2);
  each_element(
      HostLane{}, n, [](const bf16& a, bf16& b) { b = bf16(3 * static_cast<float>(a)); },
      static_cast<const bf16*>(x.data()), Written(to.data()));
  for (int j = 0; j < n; ++j) EXPECT_EQ(to[j], 3 * x[j]) << j;
}

}  // namespace
}  // namespace sestina

// Numbers in 8 and 4 bits with group scales, and index maps, against plain loops.
#include <algorithm>

#include "../reference.hpp"
#include "kernels/model/block_rotations.hpp"
#include "kernels/model/quantise.hpp"

namespace sestina {
namespace {

using namespace reference;

struct CodedGroups {
  std::vector<int> codes, zeros;
  Array values;
};

template <class Exec>
std::vector<int> read_codes(const Kokkos::View<std::uint8_t*, typename Exec::memory_space>& view) {
  Kokkos::fence();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return {host.data(), host.data() + host.size()};
}

template <class C>
class GroupQuantise : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  using A = Acc<T>;
  Exec exec_;

  CodedGroups there_and_back(const Array& w, std::size_t group, bool with_zero, int bits = 8) {
    const std::size_t n = w.cols, groups = group_count(n, group);
    using Bytes = Kokkos::View<std::uint8_t*, typename Exec::memory_space>;
    const Bytes codes("codes", code_bytes(n, bits)), zeros("zeros", groups);
    const Field<A, Exec> from(w), scales(1, groups);
    const Field<T, Exec> to(1, n);
    const GroupCodes<Exec, A> coded{group, bits, codes, zeros, scales.vector()};
    group_quantise<Exec, A>(exec_, from.read_vector(), with_zero, coded);
    group_dequantise<Exec, T>(exec_, coded, to.vector());
    return {read_codes<Exec>(codes), read_codes<Exec>(zeros), to.get()};
  }
};
TYPED_TEST_SUITE(GroupQuantise, AllCases);

TYPED_TEST(GroupQuantise, ValuesAreNoFartherThanHalfAStep) {
  using T = typename TestFixture::T;
  for (const std::size_t group : {16, 96}) {
    const Array w = rounded<Acc<T>>(random_array(1, 5 * group + 7, 1));
    for (const int bits : {8, 4}) {
      const CodedGroups got = this->there_and_back(w, group, true, bits);
      for (std::size_t i = 0; i < w.cols; ++i) {
        const std::size_t begin = i / group * group, end = std::min(begin + group, w.cols);
        double low = 0, high = 0;
        for (std::size_t j = begin; j < end; ++j) low = std::min(low, w.values[j]), high = std::max(high, w.values[j]);
        // Half a step; at the ends of the range a whole one, as the code of zero is rounded too.
        const double step = (high - low) / ((1 << bits) - 1);
        EXPECT_NEAR(got.values.values[i], w.values[i], step * 1.001 + epsilon<T> * std::abs(w.values[i])) << bits;
      }
    }
  }
}

// Two to a byte, the first one in its lower half, whatever was there; an odd number of them leaves half a byte.
TYPED_TEST(GroupQuantise, FourBitsLieInPairs) {
  Array w(1, 5);
  for (std::size_t i = 0; i < 5; ++i) w.values[i] = static_cast<double>(i) * .375;  // codes 0, 4, 8, 11, 15
  const CodedGroups got = this->there_and_back(w, 6, true, 4);
  EXPECT_EQ(got.codes, (std::vector<int>{4 << 4 | 0, 11 << 4 | 8, 15}));
  EXPECT_EQ(got.zeros, std::vector<int>{0});
}

TYPED_TEST(GroupQuantise, HoldsGroupsOfOneSignOnlyWithZeroInTheRange) {
  using T = typename TestFixture::T;
  const std::size_t group = 8;
  Array w(1, 3 * group);
  for (std::size_t i = 0; i < group; ++i) {
    w.values[i] = .4375;                                        // constant
    w.values[group + i] = 1 + static_cast<double>(i) / 64;      // positive
    w.values[2 * group + i] = -3 - static_cast<double>(i) / 8;  // negative
  }
  const CodedGroups kept = this->there_and_back(w, group, true), lost = this->there_and_back(w, group, false);
  for (std::size_t i = 0; i < w.cols; ++i) EXPECT_NEAR(kept.values.values[i], w.values[i], .02 + epsilon<T> * 4);
  EXPECT_LT(lost.values.values[0], 1e-4);  // the published rule: a constant comes back as nothing
}

// What codes leave over is kept to half a 128th of a step, in groups of both signs and of one; codes and passes are as
// without it, and rows may be widened from any of their numbers on.
TYPED_TEST(GroupQuantise, ResidualsKeepWhatCodesLeaveOver) {
  using Exec = typename TestFixture::Exec;
  using A = Acc<typename TestFixture::T>;
  const std::size_t group = 96, n = 5 * group + 7, groups = group_count(n, group);
  Array w = rounded<A>(random_array(1, n, 1));
  for (std::size_t i = 0; i < group; ++i) w.values[i] = 1 + static_cast<double>(i) / 64;
  const Field<A, Exec> from(w);
  for (const int bits : {8, 4}) {
    using Bytes = Kokkos::View<std::uint8_t*, typename Exec::memory_space>;
    const Bytes codes("codes", code_bytes(n, bits)), zeros("zeros", groups), residuals("residuals", n);
    const Field<A, Exec> scales(1, groups), whole(1, n), odd(1, n - 21), even(1, n - 22), coarse(1, n);
    GroupCodes<Exec, A> coded{group, bits, codes, zeros, scales.vector(), residuals};
    group_quantise<Exec, A>(this->exec_, from.read_vector(), true, coded);
    EXPECT_EQ(read_codes<Exec>(codes), this->there_and_back(w, group, true, bits).codes);
    widen_codes<Exec, A>(this->exec_, coded, 0, whole.vector());
    widen_codes<Exec, A>(this->exec_, coded, 21, odd.vector());
    widen_codes<Exec, A>(this->exec_, coded, 22, even.vector());
    coded.residuals = {};
    widen_codes<Exec, A>(this->exec_, coded, 0, coarse.vector());
    const Array got = whole.get(), from_21 = odd.get(), from_22 = even.get(), plain = coarse.get(),
                steps = scales.get();
    double most = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double step = steps.values[i / group];
      // Half of a unit; at the ends of the range, a whole step away, as much more as a signed byte does not hold.
      EXPECT_NEAR(got.values[i], w.values[i], step * 1.001 / 128 + 4 * epsilon<A> * std::abs(w.values[i])) << bits;
      most = std::max(most, std::abs(plain.values[i] - w.values[i]) / step);
      if (i >= 21) EXPECT_EQ(from_21.values[i - 21], got.values[i]) << i;
      if (i >= 22) EXPECT_EQ(from_22.values[i - 22], got.values[i]) << i;
    }
    EXPECT_GT(most, 0.4);
  }
}

TYPED_TEST(GroupQuantise, ZeroStaysZero) {
  const CodedGroups got = this->there_and_back(Array(1, 32), 16, true);
  for (const double value : got.values.values) EXPECT_EQ(value, 0);
}

TYPED_TEST(GroupQuantise, IndexMapsMoveColumnsThereAndBack) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const std::vector<int> order{3, 0, 4, 1, 2}, rows{1, 2, 0};
  const Array x = rounded<T>(random_array(3, 5, 2));
  const Indices<Exec> index(order), row_index(rows);
  const Field<T, Exec> from(x, 2), taken(3, 5, 1), back(3, 5);
  take_columns<Exec, T>(this->exec_, from.read(), index.vector(), false, taken.matrix());
  put_columns<Exec, T>(this->exec_, taken.read(), index.vector(), back.matrix());
  expect_same(back.get(), x, "there and back");
  Array want = x;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 5; ++j) want(i, j) = x(i, static_cast<std::size_t>(order[j]));
  expect_same(taken.get(), want, "taken");
  take_columns<Exec, T>(this->exec_, from.read(), index.vector(), true, taken.matrix());
  for (double& value : want.values) value *= 2;
  expect_same(taken.get(), want, "added");
}

TEST(IndexMap, MovesElementsThereAndBack) {
  const std::vector<int> order{3, 0, 4, 1, 2}, rows{1, 2, 0};
  const Array x = random_array(3, 5, 3);
  const Host exec;
  const Indices<Host> index(order), row_index(rows);
  const Field<double, Host> from(x), taken(3, 5), back(3, 5);
  take_elements<Host, double, double>(exec, from.read(), row_index.vector(), index.vector(), taken.matrix());
  put_elements<Host, double, double>(exec, taken.read(), row_index.vector(), index.vector(), back.matrix());
  expect_same(back.get(), x, "there and back");
  const Array got = taken.get();
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 5; ++j)
      EXPECT_EQ(got(i, j), x(static_cast<std::size_t>(rows[i]), static_cast<std::size_t>(order[j])));
}

}  // namespace
}  // namespace sestina

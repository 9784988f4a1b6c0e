// Rows of numbers in 8 bits with their own scales, and their update with stochastic rounding, against plain loops.
#include <algorithm>

#include "../reference.hpp"
#include "kernels/model/quantise.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using namespace reference;

// Coded rows in the memory of a space.
template <class Exec>
struct RowStore {
  Kokkos::View<std::uint8_t*, typename Exec::memory_space> bytes;
  CodedRows rows;
  RowStore(std::size_t m, std::size_t n, std::size_t group) : bytes("rows", m * coded_row_bytes(n, group)) {
    rows = {bytes.data(), m, n, group};
  }
  std::vector<std::uint8_t> read() const {
    Kokkos::fence();
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), bytes);
    return {host.data(), host.data() + host.size()};
  }
};

// One group of a row as the host reads it.
struct PlainGroup {
  float scale;
  int zero;
  std::vector<int> codes;
  double value(std::size_t j) const { return static_cast<double>(codes[j] - zero) * static_cast<double>(scale); }
};

PlainGroup group_of(std::vector<std::uint8_t> bytes, std::size_t n, std::size_t group, std::size_t i, std::size_t g) {
  const CodedRow row = CodedRows{bytes.data(), bytes.size() / coded_row_bytes(n, group), n, group}.row(i);
  return {row.scales[g], row.zeros[g], {row.codes + g * group, row.codes + std::min(n, (g + 1) * group)}};
}

template <class C>
class CodedRowsOf : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;

  RowStore<Exec> encoded(const Array& w, std::size_t group) {
    const Field<Acc<T>, Exec> from(w);
    RowStore<Exec> store(w.rows, w.cols, group);
    encode_rows<Exec, Acc<T>>(exec_, from.read(), store.rows);
    Kokkos::fence();
    return store;
  }
  Array decoded(const RowStore<Exec>& store) {
    const Field<T, Exec> to(store.rows.rows, store.rows.cols);
    decode_rows<Exec, T>(exec_, store.rows, to.matrix());
    return to.get();
  }
};
TYPED_TEST_SUITE(CodedRowsOf, AllCases);

TYPED_TEST(CodedRowsOf, ValuesAreNoFartherThanAStep) {
  using T = typename TestFixture::T;
  const std::size_t m = 5, n = 45, group = 16;  // the last group of a row is shorter
  const Array w = rounded<Acc<T>>(random_array(m, n, 1));
  const auto store = this->encoded(w, group);
  const Array got = this->decoded(store);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t g = 0; g * group < n; ++g) {
      const std::size_t begin = g * group, end = std::min(begin + group, n);
      double low = 0, high = 0;
      for (std::size_t j = begin; j < end; ++j) low = std::min(low, w(i, j)), high = std::max(high, w(i, j));
      const double step = (high - low) / 255;
      const PlainGroup plain = group_of(store.read(), n, group, i, g);
      EXPECT_NEAR(static_cast<double>(plain.scale), step, 1e-6 * step);
      for (std::size_t j = begin; j < end; ++j) {
        EXPECT_NEAR(got(i, j), w(i, j), step * 1.001 + epsilon<T> * std::abs(w(i, j))) << i << ", " << j;
        // One product of fp32, rounded to T.
        EXPECT_NEAR(got(i, j), plain.value(j - begin), 2 * std::max(epsilon<T>, epsilon<float>) * std::abs(got(i, j)));
      }
    }
}

// Groups of zeros, of one sign, and a constant.
TYPED_TEST(CodedRowsOf, GroupsOfOneSignHaveValues) {
  Array w(3, 8);
  for (std::size_t j = 0; j < 8; ++j) {
    w(1, j) = .4375;
    w(2, j) = -3 - static_cast<double>(j) / 8;
  }
  const Array got = this->decoded(this->encoded(w, 8));
  for (std::size_t j = 0; j < 8; ++j) {
    EXPECT_EQ(got(0, j), 0);
    EXPECT_NEAR(got(1, j), .4375, 1e-2);
    EXPECT_NEAR(got(2, j), w(2, j), 4. / 255 + 2e-2);
  }
}

template <class Exec>
class CodedMove : public testing::Test {
 protected:
  Exec exec_;
  std::size_t m_ = 6, n_ = 70, group_ = 32;

  RowStore<Exec> start(unsigned seed = 3) {
    const Field<float, Exec> from(random_array(m_, n_, seed));
    RowStore<Exec> store(m_, n_, group_);
    encode_rows<Exec, float>(exec_, from.read(), store.rows);
    return store;
  }
  void move(const RowStore<Exec>& store, const WeightMove& how, const Array& direction, std::uint64_t key,
            const std::vector<double>& factors = {}, bool by_row = false) {
    const Field<float, Exec> u(direction);
    Array line(1, factors.size());
    line.values = factors;
    const Field<float, Exec> values(line);
    move_coded<Exec>(exec_, how, u.read(), {values.read_vector(), by_row}, store.rows, key);
    Kokkos::fence();
  }
  Array values(const RowStore<Exec>& store) {
    const Field<float, Exec> to(m_, n_);
    decode_rows<Exec, float>(exec_, store.rows, to.matrix());
    return to.get();
  }
};
TYPED_TEST_SUITE(CodedMove, StreamSpaces, SpaceNames);

TYPED_TEST(CodedMove, WhatDoesNotMoveKeepsItsBits) {
  const auto store = this->start();
  const auto before = store.read();
  for (std::uint64_t key = 0; key < 20; ++key)
    this->move(store, {.lr = 0}, random_array(this->m_, this->n_, 5), rounding_key(key, 1));
  EXPECT_EQ(store.read(), before);
}

// Each element is one of both neighbours of the value that fp32 arithmetic gives, on the grid that its group has then:
// with decay, and with factors of columns and of rows.
TYPED_TEST(CodedMove, RoundsToANeighbour) {
  const Array u = random_array(this->m_, this->n_, 7);
  for (const int factors : {0, 1, 2}) {
    const bool by_row = factors == 2;
    std::vector<double> channel;
    for (std::size_t i = 0; factors > 0 && i < (by_row ? this->m_ : this->n_); ++i)
      channel.push_back(.5 + static_cast<double>(i) / 16);
    for (const bool first : {false, true}) {
      const auto store = this->start();
      const Array w = this->values(store);
      const WeightMove how{.lr = .05, .scale = .75, .weight_decay = .25, .decay_first = first};
      this->move(store, how, u, 99, channel, by_row);
      const auto bytes = store.read();
      std::size_t moved = 0;
      for (std::size_t i = 0; i < this->m_; ++i)
        for (std::size_t j = 0; j < this->n_; ++j) {
          const double f = factors == 0 ? 1 : channel[by_row ? i : j], step = .05 * .75 * f * u(i, j), keep = 1 - .0125;
          const double want = first ? keep * w(i, j) - step : keep * (w(i, j) - step);
          const PlainGroup group = group_of(bytes, this->n_, this->group_, i, j / this->group_);
          const double scale = static_cast<double>(group.scale), got = group.value(j % this->group_);
          EXPECT_LE(std::abs(got - want), scale * 1.001) << factors << ": " << i << ", " << j;
          moved += got != w(i, j) ? 1 : 0;
        }
      EXPECT_GT(moved, this->m_ * this->n_ / 2);
    }
  }
}

// A movement of less than a step is kept in the mean: of many draws, and of n of them by at most 4 deviations.
TYPED_TEST(CodedMove, IsRightInTheMean) {
  Array u(this->m_, this->n_, 1);
  for (std::size_t i = 0; i < this->m_; ++i)  // the ends of the ranges stay, so that the grids do
    for (std::size_t j = 0; j < this->n_; ++j) u(i, j) = j % this->group_ < 2 ? 0 : 1;
  Array ends = random_array(this->m_, this->n_, 3, 0, .2);
  for (std::size_t i = 0; i < this->m_; ++i)
    for (std::size_t j = 0; j < this->n_; ++j)
      if (j % this->group_ < 2) ends(i, j) = j % this->group_ == 0 ? -1 : 1;
  const double step = 2. / 255, part = .3;
  double sum = 0, count = 0;
  std::vector<double> of_first;
  for (std::uint64_t draw = 0; draw < 40; ++draw) {
    const Field<float, TypeParam> from(ends);
    RowStore<TypeParam> store(this->m_, this->n_, this->group_);
    encode_rows<TypeParam, float>(this->exec_, from.read(), store.rows);
    const Array before = this->values(store);
    this->move(store, {.lr = part * step}, u, rounding_key(17, static_cast<std::int64_t>(draw)));
    const Array after = this->values(store);
    for (std::size_t i = 0; i < this->m_; ++i)
      for (std::size_t j = 0; j < this->n_; ++j)
        if (u(i, j) != 0) {
          sum += (before(i, j) - after(i, j)) / step;
          count += 1;
        }
    of_first.push_back(before(0, 5) - after(0, 5));
  }
  EXPECT_NEAR(sum / count, part, 4 * std::sqrt(part * (1 - part) / count));
  EXPECT_NE(*std::min_element(of_first.begin(), of_first.end()), *std::max_element(of_first.begin(), of_first.end()));
}

// A pure function of the key and the place: equal keys give equal bits, whatever the number of threads; others do not.
TYPED_TEST(CodedMove, DrawsByKeyAndPlace) {
  const Array u = random_array(this->m_, this->n_, 7);
  const auto a = this->start(), b = this->start(), c = this->start();
  this->move(a, {.lr = .01}, u, rounding_key(4, 9));
  this->move(b, {.lr = .01}, u, rounding_key(4, 9));
  this->move(c, {.lr = .01}, u, rounding_key(4, 10));
  EXPECT_EQ(a.read(), b.read());
  EXPECT_NE(a.read(), c.read());
  EXPECT_NE(rounding_key(4, 9), rounding_key(5, 9));
}

TYPED_TEST(CodedMove, GrowsItsGridWithItsValues) {
  const auto store = this->start();
  const Array before = this->values(store);
  this->move(store, {.lr = 1, .scale = -9}, before, 5);  // ten times as large
  const Array after = this->values(store);
  double most = 0;
  for (const double x : before.values) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < before.values.size(); ++i)
    EXPECT_NEAR(after.values[i], 10 * before.values[i], 20 * most / 255 * 1.01);
}

TYPED_TEST(CodedMove, TellsOfWhatIsNotFinite) {
  const Field<double, TypeParam> flag(Array(1, 1));
  Array u(this->m_, this->n_, .5);
  WeightMove how{.lr = .01};
  how.nonfinite = flag.vector().data();
  this->move(this->start(), how, u, 5);
  EXPECT_EQ(flag.get()(0, 0), 0);
  for (const std::size_t bad : {std::size_t{3}, this->n_ - 1}) {  // in a register's lanes, and after them
    const Field<double, TypeParam> raised(Array(1, 1));
    how.nonfinite = raised.vector().data();
    u(2, bad) = std::numeric_limits<double>::quiet_NaN();
    this->move(this->start(), how, u, 5);
    EXPECT_EQ(raised.get()(0, 0), 1) << bad;
    u(2, bad) = .5;
  }
}

}  // namespace
}  // namespace sestina

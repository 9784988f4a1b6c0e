#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/stopwatch.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

template <class T>
std::vector<T> wave(std::size_t n) {
  std::vector<T> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = T(float(std::sin(0.37 * double(i)) * std::exp2(double(i % 11) - 5)));
  return x;
}

template <class T>
class ReduceTest : public testing::Test {
 protected:
  static constexpr std::size_t largest = 100003;
  Workspace<Host> workspace{bytes_of<SumScratch<Host>, Host>(largest)};

  double squares(const std::vector<T>& x, const Host& exec = Host()) {
    return sum_of_squares<Host, T>(exec, Vector<const T, Host>(x.data(), x.size()), workspace);
  }
  double total(const std::vector<T>& x, const Host& exec = Host()) {
    return sum<Host, T>(exec, Vector<const T, Host>(x.data(), x.size()), workspace);
  }
};
using AllTypes = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(ReduceTest, AllTypes);

TYPED_TEST(ReduceTest, MatchesPlainSum) {
  for (const std::size_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 100003}) {
    const auto x = wave<TypeParam>(n);
    long double squares = 0, total = 0, size = 0;
    for (const TypeParam v : x) {
      const long double value = double(v);
      squares += value * value;
      total += value;
      size += std::abs(value);
    }
    // n roundings in double at most, each relative to the sum of absolute terms.
    const double eps = double(n) * std::numeric_limits<double>::epsilon();
    EXPECT_NEAR(this->squares(x), double(squares), eps * double(squares));
    EXPECT_NEAR(this->total(x), double(total), eps * double(size));
  }
}

TYPED_TEST(ReduceTest, BitsDoNotDependOnThreads) {
  const auto x = wave<TypeParam>(this->largest);
  EXPECT_EQ(this->squares(x, Host(1)), this->squares(x));
  EXPECT_EQ(this->total(x, Host(1)), this->total(x));
}

// One launch for all, with chunks of their own lengths: the same bits as one for each.
TYPED_TEST(ReduceTest, ChunksOfSeveralVectorsAreThoseOfEach) {
  using A = Acc<TypeParam>;
  const std::size_t sizes[] = {1, 700, 4096, 10007}, lengths[] = {1, 700, 512, 4000};
  std::vector<std::vector<A>> vectors;
  std::vector<ChunkedVector<A>> table;
  std::vector<double> each;
  for (int i = 0; i < 4; ++i) {
    vectors.push_back(wave<A>(sizes[i]));
    const std::size_t first = each.size(), chunks = (sizes[i] + lengths[i] - 1) / lengths[i];
    table.push_back({vectors.back().data(), sizes[i], lengths[i], first});
    each.resize(first + chunks);
    squares_of_chunks<Host, A>(Host(), Vector<const A, Host>(vectors.back().data(), sizes[i]), lengths[i],
                               Vector<double, Host>(each.data() + first, chunks));
  }
  std::vector<double> together(each.size(), -1);
  squares_of_chunks<Host, A>(Host(), table_in_space<Host>("table", table),
                             Vector<double, Host>(together.data(), together.size()));
  EXPECT_EQ(together, each);
}

TYPED_TEST(ReduceTest, NanAndInfinityPropagate) {
  auto x = wave<TypeParam>(5000);
  x[4999] = TypeParam(std::numeric_limits<float>::infinity());
  EXPECT_EQ(this->squares(x), std::numeric_limits<double>::infinity());
  x[17] = TypeParam(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(this->squares(x)));
  EXPECT_TRUE(std::isnan(this->total(x)));
}

template <class From, class To>
void check_convert() {
  for (const std::size_t n : {0, 1, 4097, 9999}) {
    const auto x = wave<From>(n);
    std::vector<To> y(n);
    convert<Host, From, To>(Host(), Vector<const From, Host>(x.data(), n), Vector<To, Host>(y.data(), n));
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(double(y[i]), double(To(x[i])));
  }
}

TYPED_TEST(ReduceTest, Converts) {
  check_convert<TypeParam, float>();
  check_convert<TypeParam, double>();
  check_convert<TypeParam, bf16>();
}

TEST(Convert, RejectsMisfit) {
  std::vector<float> x(3), y(2);
  EXPECT_THROW(
      (convert<Host, float, float>(Host(), Vector<const float, Host>(x.data(), 3), Vector<float, Host>(y.data(), 2))),
      Error);
}

// Sums that stay in the space until they are fetched have the bits of those that are returned.
TYPED_TEST(ReduceTest, FetchedSumsAreThoseReturned) {
  HostValues<Host> values("values", 2);
  for (const std::size_t n : {0, 17, 4097, 100003}) {
    const auto x = wave<TypeParam>(n);
    const Vector<const TypeParam, Host> view(x.data(), n);
    sum_to<Host, TypeParam>(Host(), view, this->workspace, values.at(0));
    sum_of_squares_to<Host, TypeParam>(Host(), view, this->workspace, values.at(1));
    values.fetch(Host(), "test");
    EXPECT_EQ(values[0], this->total(x));
    EXPECT_EQ(values[1], this->squares(x));
  }
}

TEST(Stopwatch, TellsTheTimeBetweenStartAndStop) {
  Stopwatch<Device> watch{Device()};
  watch.start();
  watch.stop();
  Device().fence("test");
  EXPECT_GE(watch.seconds(), 0);
  EXPECT_LT(watch.seconds(), 10);
}

}  // namespace
}  // namespace sestina

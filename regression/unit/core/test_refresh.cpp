#include "core/optimizer/refresh/refresh.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "refresh_rig.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Space>
class Refresh : public testing::Test {};
TYPED_TEST_SUITE(Refresh, StreamSpaces, SpaceNames);

constexpr double eps32 = epsilon<float>;

void expect_orthonormal(const Array& q) {
  EXPECT_LE(largest_difference(product(transposed(q), q), identity(q.cols)), 20 * double(q.cols) * eps32);
}

std::vector<double> falling_powers(std::size_t d, double ratio) {
  std::vector<double> values(d);
  for (std::size_t i = 0; i < d; ++i) values[i] = std::pow(ratio, double(i));
  return values;
}

// Columns of both up to their signs.
void expect_same_columns(Array got, const Array& want, double tolerance) {
  for (std::size_t j = 0; j < want.cols; ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < want.rows; ++i) dot += got(i, j) * want(i, j);
    if (dot < 0)
      for (std::size_t i = 0; i < want.rows; ++i) got(i, j) = -got(i, j);
  }
  EXPECT_LE(largest_difference(got, want), tolerance);
}

TYPED_TEST(Refresh, EigenBasisDecomposesWithFallingValues) {
  using Space = TypeParam;
  for (std::size_t d : {1, 2, 7, 33, 70}) {
    auto stream = make_stream<Space>(
        bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::eigen_basis, d); }));
    const Array k = rounded<float>(with_eigenvalues(random_basis(d, 3), falling_powers(d, 0.8)));
    const Field<float, Space> factor(k), basis(d, d);
    std::int64_t failures = 0;
    ASSERT_EQ(refresh(stream, job_in_place(RefreshMethod::eigen_basis, factor, basis), failures), Refreshed::done);
    expect_orthonormal(basis.get());
    const Array turned = product(transposed(basis.get()), product(k, basis.get()));
    std::vector<double> found(d);
    for (std::size_t j = 0; j < d; ++j) found[j] = turned(j, j);
    EXPECT_TRUE(std::is_sorted(found.rbegin(), found.rend()));
    EXPECT_LE(largest_difference(with_eigenvalues(basis.get(), found), k), 20 * double(d) * eps32);
    EXPECT_GT(stream.refresh.seconds.waits, 0);
  }
}

TYPED_TEST(Refresh, PowerQrSortsAndMakesOneStepOfSubspaceIteration) {
  using Space = TypeParam;
  for (std::size_t d : {1, 2, 7, 33}) {
    auto stream = make_stream<Space>(
        bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }));
    const Array k = rounded<float>(with_eigenvalues(random_basis(d, 3), falling_powers(d, 0.9)));
    const Array q = rounded<float>(random_basis(d, 4));
    const Field<float, Space> factor(k), basis(q);
    const Indices<Space> order(std::vector<int>(d, -1));
    const Vector<std::int32_t, Space> order_out(const_cast<std::int32_t*>(order.vector().data()), d);
    std::int64_t failures = 2;
    auto job = job_in_place(RefreshMethod::power_qr, factor, basis);
    job.order = order_out;
    ASSERT_EQ(refresh(stream, job, failures), Refreshed::done);
    EXPECT_EQ(failures, 0);

    const Array p = product(k, q), projected = product(transposed(q), p);
    std::vector<int> want(d);
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return projected(a, a) > projected(b, b); });
    Array sorted(d, d);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < d; ++j) sorted(i, j) = p(i, want[j]);
    const Array order_found = values_of(order_out);
    for (std::size_t j = 0; j < d; ++j) EXPECT_EQ(order_found(0, j), want[j]);
    expect_orthonormal(basis.get());
    // Condition number of the product times rounding.
    expect_same_columns(basis.get(), orthonormalized(sorted), 50 * double(d) * eps32 / std::pow(0.9, double(d)));
  }
}

TYPED_TEST(Refresh, PowerQrConvergesToTheEigenbasis) {
  using Space = TypeParam;
  constexpr std::size_t d = 12;
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }));
  const Array wanted = random_basis(d, 3);
  const Field<float, Space> factor(with_eigenvalues(wanted, falling_powers(d, 0.5))), basis(random_basis(d, 5));
  std::int64_t failures = 0;
  for (int i = 0; i < 60; ++i)
    ASSERT_EQ(refresh(stream, job_in_place(RefreshMethod::power_qr, factor, basis), failures), Refreshed::done);
  expect_same_columns(basis.get(), wanted, 1e-3);  // rounding against the smallest gap, 2^-12
}

TYPED_TEST(Refresh, DegenerateFactorsStillGiveBases) {
  using Space = TypeParam;
  constexpr std::size_t d = 9;
  auto stream = make_stream<Space>(std::max(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }),
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::eigen_basis, d); })));
  const Array g = random_array(d, 2, 6);
  for (const Array& k : {product(g, transposed(g)), identity(d), diagonal({1, 1, 1, 0, 0, 0, 0, 0, 0})})
    for (RefreshMethod method : {RefreshMethod::eigen_basis, RefreshMethod::power_qr}) {
      const Field<float, Space> factor(k), basis(random_basis(d, 7));
      std::int64_t failures = 0;
      ASSERT_EQ(refresh(stream, job_in_place(method, factor, basis), failures), Refreshed::done);
      expect_orthonormal(basis.get());
    }
}

TYPED_TEST(Refresh, ZeroFactorKeepsTheBasis) {
  using Space = TypeParam;
  constexpr std::size_t d = 5;
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }));
  const Array before = rounded<float>(random_basis(d, 8));
  const Field<float, Space> factor(Array(d, d)), basis(before);
  std::int64_t failures = 0;
  EXPECT_EQ(refresh(stream, job_in_place(RefreshMethod::power_qr, factor, basis), failures), Refreshed::not_needed);
  expect_same(basis.get(), before, "basis");
  EXPECT_EQ(stream.refresh.failures, 0);
}

// The iteration of the root takes a basis for good as soon as it makes the factor diagonal, whatever its columns'
// length.
TYPED_TEST(Refresh, ABasisThatIsNotOrthonormalDoesNotGetOut) {
  using Space = TypeParam;
  constexpr std::size_t d = 4;
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::inverse_root_qr, d); }));
  const Array twice = diagonal({2, 2, 2, 2});
  const Field<float, Space> factor(diagonal({4, 3, 2, 1})), basis(twice), root(identity(d));
  std::int64_t failures = 0;
  auto job = job_in_place(RefreshMethod::inverse_root_qr, factor, basis);
  job.root = root.matrix();
  EXPECT_EQ(refresh(stream, job, failures), Refreshed::kept);
  expect_same(basis.get(), twice, "basis");
  expect_same(root.get(), identity(d), "root");
  EXPECT_EQ(failures, 1);
}

TYPED_TEST(Refresh, TriesAgainInDoubleWhenFloatOverflows) {
  using Space = TypeParam;
  constexpr std::size_t d = 6;
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }));
  const Field<float, Space> factor(Array(d, d, 3e38)), basis(random_basis(d, 9));
  std::int64_t failures = 0;
  ASSERT_EQ(refresh(stream, job_in_place(RefreshMethod::power_qr, factor, basis), failures), Refreshed::done);
  expect_orthonormal(basis.get());
  EXPECT_EQ(stream.refresh.failures, 0);
}

struct Dumped {
  int count = 0;
  std::string name;
  std::vector<float> values;
  void take(const std::string& from, const std::vector<float>& what, std::size_t d) {
    EXPECT_EQ(what.size(), d * d);
    ++count;
    name = from;
    values = what;
  }
};

TYPED_TEST(Refresh, KeepsTheLastGoodBasisAndStopsAfterTooManyFailures) {
  using Space = TypeParam;
  constexpr std::size_t d = 5;
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, RefreshMethod::power_qr, d); }));
  Dumped dumped;
  stream.refresh.policy = {.max_failures = 2, .stagger = false, .dump = [&](auto&&... x) { dumped.take(x...); }};
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Array k = identity(d);
    k(1, 3) = bad;
    const Array before = rounded<float>(random_basis(d, 8));
    const Field<float, Space> factor(k), basis(before), good(identity(d));
    std::int64_t failures = 0;
    dumped.count = 0;
    stream.refresh.failures = 0;
    auto job = job_in_place(RefreshMethod::power_qr, factor, basis);
    job.name = "/optimizer/w/factor_left";
    EXPECT_EQ(refresh(stream, job, failures), Refreshed::kept);
    EXPECT_EQ(refresh(stream, job, failures), Refreshed::kept);
    EXPECT_EQ(failures, 2);
    job.factor = good.read();
    EXPECT_EQ(refresh(stream, job, failures), Refreshed::done);
    EXPECT_EQ(failures, 0);
    expect_same_columns(basis.get(), before, 1e-6);
    job.factor = factor.read();
    EXPECT_EQ(refresh(stream, job, failures), Refreshed::kept);
    EXPECT_EQ(refresh(stream, job, failures), Refreshed::kept);
    try {
      refresh(stream, job, failures);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::diverged);
      EXPECT_NE(std::string(error.what()).find("/optimizer/w/factor_left"), std::string::npos);
    }
    EXPECT_EQ(dumped.count, 5);
    EXPECT_EQ(dumped.name, "/optimizer/w/factor_left");
    EXPECT_EQ(dumped.values[0], 1.0f);
    EXPECT_EQ(stream.refresh.failures, 5);
  }
}

TYPED_TEST(Refresh, ColdBasesDiagonaliseTheGradient) {
  using Space = TypeParam;
  for (const BasisForm form : {BasisForm::svd, BasisForm::gram})
    for (const auto& shape : {std::pair<std::size_t, std::size_t>{1, 1}, {1, 16}, {16, 1}, {9, 8}, {8, 12}, {33, 7}}) {
      const std::size_t m = shape.first, n = shape.second;  // clang 14 captures no bindings
      auto stream = make_stream<Space>(
          bytes_taken<Space>([&](auto& counter) { declare_cold_bases<Space>(counter, form, m, n, m, n); }));
      const Array g = rounded<float>(random_array(m, n, 11));
      const Field<float, Space> gradient(g, 3), left(m, m), right(n, n);
      ASSERT_TRUE(cold_bases<Space>(stream, form, gradient.read(), left.matrix(), right.matrix()));
      expect_orthonormal(left.get());
      expect_orthonormal(right.get());
      const Array turned = product(transposed(left.get()), product(g, right.get()));
      double last = std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          if (i != j) {
            EXPECT_NEAR(turned(i, j), 0, 1e-5);
          } else {
            EXPECT_LE(std::abs(turned(i, i)), last);
            last = std::abs(turned(i, i));
          }
        }
      for (const Array& basis : {left.get(), right.get()})
        for (std::size_t j = 0; j < basis.cols; ++j) {
          double largest = 0;
          for (std::size_t i = 0; i < basis.rows; ++i)
            if (std::abs(basis(i, j)) > std::abs(largest)) largest = basis(i, j);
          EXPECT_GT(largest, 0);
        }
    }
}

// The point of the rule: rounding of the gradient moves the bases by no more than rounding, null space included.
TYPED_TEST(Refresh, ColdBasesHardlyMoveWithRoundingOfTheGradient) {
  using Space = TypeParam;
  constexpr std::size_t m = 20, n = 6;
  for (const BasisForm form : {BasisForm::svd, BasisForm::gram}) {
    auto stream = make_stream<Space>(
        bytes_taken<Space>([&](auto& counter) { declare_cold_bases<Space>(counter, form, m, n, m, n); }));
    const Array low = product(random_array(m, 3, 1), random_array(3, n, 2));  // rank 3
    Array moved = low;
    const Array noise = random_array(m, n, 3);
    for (std::size_t i = 0; i < moved.values.size(); ++i) moved.values[i] *= 1 + 0.5 * eps32 * noise.values[i];
    const Field<float, Space> a(low), b(moved), left_a(m, m), left_b(m, m), right_a(n, n), right_b(n, n);
    ASSERT_TRUE(cold_bases<Space>(stream, form, a.read(), left_a.matrix(), right_a.matrix()));
    ASSERT_TRUE(cold_bases<Space>(stream, form, b.read(), left_b.matrix(), right_b.matrix()));
    EXPECT_LE(largest_difference(left_a.get(), left_b.get()), 1e-5);
    EXPECT_LE(largest_difference(right_a.get(), right_b.get()), 1e-5);
  }
}

TYPED_TEST(Refresh, ColdBasesOfZeroAreIdentitiesAndOfNanNone) {
  using Space = TypeParam;
  for (const BasisForm form : {BasisForm::svd, BasisForm::gram}) {
    auto stream = make_stream<Space>(
        bytes_taken<Space>([&](auto& counter) { declare_cold_bases<Space>(counter, form, 4, 3, 4, 3); }));
    const Field<float, Space> zero(Array(4, 3)), left(4, 4), right(3, 3), none(0, 0);
    ASSERT_TRUE(cold_bases<Space>(stream, form, zero.read(), left.matrix(), right.matrix()));
    expect_same(left.get(), identity(4), "left");
    expect_same(right.get(), identity(3), "right");
    Array g = random_array(4, 3, 1);
    g(2, 1) = std::numeric_limits<double>::quiet_NaN();
    const Field<float, Space> bad(g);
    EXPECT_FALSE(cold_bases<Space>(stream, form, bad.read(), left.matrix(), right.matrix()));
    expect_same(left.get(), identity(4), "left");
    const Field<float, Space> good(random_array(4, 3, 1));
    ASSERT_TRUE(cold_bases<Space>(stream, form, good.read(), none.matrix(), right.matrix()));
    expect_same(left.get(), identity(4), "left");
    expect_orthonormal(right.get());
  }
}

// P = Q Q^T of the first columns.
Array projector_on(const Array& basis, std::size_t columns) {
  Array kept(basis.rows, columns);
  for (std::size_t i = 0; i < basis.rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) kept(i, j) = basis(i, j);
  return product(kept, transposed(kept));
}

double distance(const Array& a, const Array& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) squares += std::pow(a.values[i] - b.values[i], 2);
  return std::sqrt(squares);
}

// A matrix with these singular values, in fp32.
template <class Space>
Array with_singular_values(const std::vector<double>& values, std::size_t m, std::size_t n) {
  auto stream = make_stream<Space>(
      bytes_taken<Space>([&](auto& counter) { declare_cold_bases<Space>(counter, BasisForm::svd, m, n, m, n); }));
  const Field<float, Space> any(random_array(m, n, 21)), left(m, m), right(n, n);
  EXPECT_TRUE(cold_bases<Space>(stream, BasisForm::svd, any.read(), left.matrix(), right.matrix()));
  Array scaled(m, n);
  const Array u = left.get(), v = right.get();
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t k = 0; k < std::min(m, n); ++k)
      for (std::size_t j = 0; j < n; ++j) scaled(i, j) += u(i, k) * values[k] * v(j, k);
  return rounded<float>(scaled);
}

// Spans, never single columns: those of values that lie close together are anybody's choice. The bound is that of
// cold_bases.cpp next to the rounding of the bases to fp32, and a small part of what the rounding of the matrix does.
TYPED_TEST(Refresh, GramAndSvdSpanTheSame) {
  using Space = TypeParam;
  const std::vector<double> values = {8, 8, 5, 1, 1, 1, 0.3, 1e-2, 1e-2, 1e-3, 3e-4, 1e-4};  // floor: 40 eps32 8
  const std::vector<std::size_t> cuts = {2, 3, 6, 7, 9, 10, 11};
  for (const auto& shape : {std::pair<std::size_t, std::size_t>{12, 40}, {40, 12}}) {
    const std::size_t m = shape.first, n = shape.second;  // clang 14 captures no bindings
    const Field<float, Space> gradient(with_singular_values<Space>(values, m, n));
    std::vector<Array> left, right;
    for (const BasisForm form : {BasisForm::svd, BasisForm::gram}) {
      auto stream = make_stream<Space>(
          bytes_taken<Space>([&](auto& counter) { declare_cold_bases<Space>(counter, form, m, n, m, n); }));
      const Field<float, Space> l(m, m), r(n, n);
      ASSERT_TRUE(cold_bases<Space>(stream, form, gradient.read(), l.matrix(), r.matrix()));
      left.push_back(l.get());
      right.push_back(r.get());
    }
    constexpr double eps64 = std::numeric_limits<double>::epsilon();
    for (const std::size_t cut : cuts) {
      const double inside = values[cut - 1], outside = values[cut];
      const double turn = 20 * eps64 * values[0] * values[0] / (inside * inside - outside * outside);
      const double bound = 4 * eps32 * std::sqrt(static_cast<double>(cut)) + turn;
      EXPECT_LE(turn, 0.01 * eps32 * values[0] / (inside - outside) * 20) << cut;
      EXPECT_LE(distance(projector_on(left[0], cut), projector_on(left[1], cut)), bound) << m << " left " << cut;
      EXPECT_LE(distance(projector_on(right[0], cut), projector_on(right[1], cut)), bound) << m << " right " << cut;
    }
    EXPECT_LE(distance(projector_on(left[1], m), identity(m)), 1e-5);
    EXPECT_LE(distance(projector_on(right[1], n), identity(n)), 1e-5);
  }
}

// GaLore's projector of either side and any rank, beyond that of the gradient too.
TYPED_TEST(Refresh, LeadingVectorsOfBothFormsSpanTheSame) {
  using Space = TypeParam;
  const std::vector<double> values = {4, 3, 2, 1, 0.5, 0.25, 0, 0};
  for (const auto& shape : {std::pair<std::size_t, std::size_t>{8, 20}, {20, 8}})
    for (const bool right : {false, true})
      for (const std::size_t rank : {1, 4, 6, 7}) {
        const std::size_t m = shape.first, n = shape.second;
        const Field<float, Space> gradient(with_singular_values<Space>(values, m, n));
        std::vector<Array> projectors;
        for (const BasisForm form : {BasisForm::svd, BasisForm::gram}) {
          auto stream = make_stream<Space>(bytes_taken<Space>(
              [&](auto& counter) { declare_leading_vectors<Space>(counter, form, m, n, right, rank); }));
          const Field<float, Space> root(right ? rank : m, right ? n : rank);
          RefreshJob<Space> job;
          job.method = RefreshMethod::leading_vectors;
          job.factor = gradient.read();
          job.root = root.matrix();
          job.right = right;
          job.form = form;
          ASSERT_EQ(compute_refresh<Space>(stream, job), Refreshed::done);
          projectors.push_back(right ? transposed(root.get()) : root.get());
          expect_orthonormal(projectors.back());
        }
        if (rank <= 6)
          EXPECT_LE(distance(projector_on(projectors[0], rank), projector_on(projectors[1], rank)), 1e-5)
              << m << " " << right << " " << rank;
      }
}

}  // namespace
}  // namespace sestina

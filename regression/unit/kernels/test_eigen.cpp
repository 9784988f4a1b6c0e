#include "kernels/optimizer/eigen.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include "../linear_algebra.hpp"
#include "../spaces.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Case>
class Decomposition : public testing::Test {};
TYPED_TEST_SUITE(Decomposition, StreamCases);

void expect_orthonormal(const Array& q, double eps) {
  EXPECT_LE(largest_difference(product(transposed(q), q), identity(q.cols)), 20 * double(q.rows) * eps);
}

TYPED_TEST(Decomposition, EighOfASymmetricMatrix) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  for (std::size_t d : {0, 1, 2, 3, 31, 64, 101}) {
    const Array g = random_array(d, d, 1);
    Array a(d, d);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < d; ++j) a(i, j) = static_cast<T>(g(i, j) + g(j, i));
    const Field<T, Exec> given(a), vectors(d, d), values(1, d);
    Workspace<Exec> workspace(
        bytes_taken<Exec>([&](auto& counter) { Solver<Exec>::template declare_eigh<T>(counter, d); }));
    ASSERT_TRUE(Solver<Exec>(Exec()).template eigh<T>(given.read(), vectors.matrix(), values.vector(), workspace));
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    expect_orthonormal(vectors.get(), epsilon<T>);
    const std::vector<double> found = values.get().values;
    EXPECT_TRUE(std::is_sorted(found.rbegin(), found.rend()));
    // Backward error: a few eps times the norm, which is about 2 sqrt(2 d).
    EXPECT_LE(largest_difference(with_eigenvalues(vectors.get(), found), a), 40 * double(d) * epsilon<T>);
  }
}

TYPED_TEST(Decomposition, EighOfABatchIsThatOfEach) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  constexpr std::size_t count = 3;
  for (std::size_t d : {0, 1, 17, 40}) {
    Array all(count * d, d);
    for (std::size_t i = 0; i < all.rows; ++i)
      for (std::size_t j = 0; j < d; ++j) {
        const std::size_t first = i / d * d, low = std::min(i - first, j), high = std::max(i - first, j);
        all(i, j) = static_cast<T>(random_array(1, 1, 1 + (first + low) * d + high).values[0]);
      }
    const Field<T, Exec> given(all), used(all), vectors(count * d, d), values(count, d), wanted(count * d, d),
        wanted_values(count, d);
    const Kokkos::View<std::int32_t*, typename Exec::memory_space> info("info", count);
    Kokkos::deep_copy(info, 7);
    Solver<Exec> solver{Exec()};
    Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) {
      Solver<Exec>::template declare_eigh<T>(counter, d);
      solver.template declare_eigh_batch<T>(counter, count, d);
    }));
    solver.template eigh_batch<T>(used.matrix(), vectors.matrix(), values.matrix(),
                                  Vector<std::int32_t, Exec>(info.data(), count), workspace);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_TRUE(solver.template eigh<T>(stacked_at(given.read(), i, d), stacked_at(wanted.matrix(), i, d),
                                          Vector<T, Exec>(wanted_values.matrix().data() + i * d, d), workspace));
    expect_same(vectors.get(), wanted.get(), "vectors");
    expect_same(values.get(), wanted_values.get(), "values");
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(info(i), d == 0 ? info(i) : 0);
  }
}

TYPED_TEST(Decomposition, QrIsThinOrCompletesTheBasis) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  struct Shape {
    std::size_t m, n, p;
  };
  for (const Shape& s : {Shape{0, 0, 0},
                         {1, 1, 1},
                         {5, 5, 5},
                         {9, 4, 4},
                         {9, 4, 9},
                         {9, 4, 6},
                         {6, 0, 6},
                         {130, 70, 70},
                         {70, 70, 70}}) {
    const Array a = rounded<T>(random_array(s.m, s.n, 3));
    const Field<T, Exec> given(a), q(s.m, s.p);
    Workspace<Exec> workspace(
        bytes_taken<Exec>([&](auto& counter) { Solver<Exec>::template declare_qr<T>(counter, s.m, s.n, s.p); }));
    ASSERT_TRUE(Solver<Exec>(Exec()).template qr<T>(given.read(), q.matrix(), workspace));
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    expect_orthonormal(q.get(), epsilon<T>);
    const Array r = product(transposed(q.get()), a);
    double below = 0;
    for (std::size_t i = 0; i < s.p; ++i)
      for (std::size_t j = 0; j < std::min(i, s.n); ++j) below = std::max(below, std::abs(r(i, j)));
    EXPECT_LE(below, 20 * double(s.m) * epsilon<T>);  // entries of a are about 1

    Array columns(s.p, s.m);
    for (std::size_t j = 0; j < s.n; ++j)
      for (std::size_t i = 0; i < s.m; ++i) columns(j, i) = a(i, j);
    const Field<T, Exec> in_place(columns);
    Workspace<Exec> less(bytes_taken<Exec>(
        [&](auto& counter) { Solver<Exec>::template declare_qr_columns<T>(counter, s.m, s.n, s.p); }));
    ASSERT_TRUE(Solver<Exec>(Exec()).template qr_columns<T>(s.n, in_place.matrix(), less));
    EXPECT_EQ(less.peak(), less.capacity());
    expect_same(transposed(in_place.get()), q.get(), "Q in place");
  }
}

TYPED_TEST(Decomposition, QrOfZeroIsTheIdentityUpToSigns) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  const Field<T, Exec> q(Array(4, 4));
  Workspace<Exec> workspace(
      bytes_taken<Exec>([&](auto& counter) { Solver<Exec>::template declare_qr<T>(counter, 4, 4, 4); }));
  ASSERT_TRUE(Solver<Exec>(Exec()).template qr<T>(q.read(), q.matrix(), workspace));
  Array sizes = q.get();
  for (double& value : sizes.values) value = std::abs(value);
  expect_same(sizes, identity(4), "Q");
}

TYPED_TEST(Decomposition, SvdOfAnyShape) {
  using Exec = typename TypeParam::Exec;
  if (std::is_same_v<typename TypeParam::T, float>) return;
  for (const auto& shape :
       {std::pair<std::size_t, std::size_t>{0, 3}, {1, 1}, {1, 9}, {9, 1}, {7, 5}, {5, 7}, {40, 40}}) {
    const std::size_t m = shape.first, n = shape.second;  // clang 14 captures no bindings
    const std::size_t k = std::min(m, n);
    const Array a = random_array(m, n, 5);
    const Field<double, Exec> given(a), left(m, k), right(n, k), values(1, k);
    Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) { Solver<Exec>::declare_svd(counter, m, n); }));
    ASSERT_TRUE(Solver<Exec>(Exec()).svd(given.read(), left.matrix(), values.vector(), right.matrix(), workspace));
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    expect_orthonormal(left.get(), epsilon<double>);
    expect_orthonormal(right.get(), epsilon<double>);
    const std::vector<double> found = values.get().values;
    EXPECT_TRUE(std::is_sorted(found.rbegin(), found.rend()));
    EXPECT_LE(largest_difference(product(product(left.get(), diagonal(found)), transposed(right.get())), a), 1e-13);
  }
}

// Large enough for LAPACK to want several threads.
TEST(Decomposition, BitsDoNotDependOnTheThreadCountWhichStaysAsItWas) {
  constexpr std::size_t d = 200;
  const Array g = random_array(d, d, 6);
  const Field<float, Host> symmetric(product(g, transposed(g))), general(g);
  expect_same_for_any_thread_count([&](const Host& exec) {
    const int before = omp_get_max_threads();
    const Field<float, Host> vectors(d, d), values(1, d), q(d, d);
    Workspace<Host> workspace(
        std::max(bytes_taken<Host>([&](auto& counter) { Solver<Host>::declare_eigh<float>(counter, d); }),
                 bytes_taken<Host>([&](auto& counter) { Solver<Host>::declare_qr<float>(counter, d, d, d); })));
    Solver<Host> solver(exec);
    EXPECT_TRUE(solver.eigh<float>(symmetric.read(), vectors.matrix(), values.vector(), workspace));
    EXPECT_TRUE(solver.qr<float>(general.read(), q.matrix(), workspace));
    EXPECT_EQ(omp_get_max_threads(), before);
    return std::vector{vectors.get(), values.get(), q.get()};
  });
}

TEST(Columns, DotsOrderPermutationAndSigns) {
  const Array a = random_array(7, 70, 1), b = random_array(7, 70, 2);
  const Field<double, Host> x(a), y(b), dots(1, 70);
  column_dots<Host, double>(Host(), x.read(), y.read(), dots.vector());
  for (std::size_t j = 0; j < 70; ++j) {
    double want = 0;
    for (std::size_t i = 0; i < 7; ++i) want += a(i, j) * b(i, j);
    EXPECT_NEAR(dots.get()(0, j), want, 1e-14);
  }
  Array keys(1, 5);
  keys.values = {1, 3, 2, 3, -4};
  const Field<double, Host> key(keys), few(random_array(2, 5, 3)), moved(5, 2), turned(70, 7);
  const Indices<Host> order({0, 0, 0, 0, 0});
  const Vector<std::int32_t, Host> to(const_cast<std::int32_t*>(order.vector().data()), 5);
  order_falling<Host>(Host(), key.read_vector(), to);
  const int want[] = {1, 3, 2, 0, 4};
  columns_as_rows<Host, double>(Host(), few.read(), to, moved.matrix());
  columns_as_rows<Host, double>(Host(), x.read(), {}, turned.matrix());
  expect_same(turned.get(), transposed(x.get()), "columns as they come");
  for (std::size_t j = 0; j < 5; ++j) {
    EXPECT_EQ(to(j), want[j]);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(moved.get()(j, i), few.get()(i, want[j]));
  }
  Array signs(2, 3);
  signs.values = {1, -3, 2, -2, 1, -2};
  const Field<double, Host> signed_columns(signs);
  fix_signs<Host, double>(Host(), signed_columns.matrix());
  EXPECT_EQ(signed_columns.get().values, (std::vector<double>{-1, 3, 2, 2, -1, -2}));
}

}  // namespace
}  // namespace sestina

#include "kernels/optimizer/inverse_root.hpp"

#include <gtest/gtest.h>

#include "../linear_algebra.hpp"
#include "../spaces.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {
namespace {

using namespace reference;

template <class Case>
class InverseRoot : public testing::Test {};
TYPED_TEST_SUITE(InverseRoot, StreamCases);

// What the functions need, on one space.
template <class Exec, class T>
struct Rig {
  explicit Rig(std::size_t d)
      : gemm(exec),
        solver(exec),
        workspace(bytes_taken<Exec>([&](auto& counter) { declare_inverse_root<Exec, T>(counter, d); })) {}
  RootTools<Exec> tools() { return {exec, gemm, solver, workspace}; }
  Exec exec;
  Gemm<Exec> gemm;
  Solver<Exec> solver;
  Workspace<Exec> workspace;
};

std::vector<double> spectrum(std::size_t d, double smallest) {
  std::vector<double> values(d);
  for (std::size_t i = 0; i < d; ++i) values[i] = d == 1 ? 1 : std::pow(smallest, double(i) / double(d - 1));
  return values;
}

std::vector<double> powers(std::vector<double> values, double exponent) {
  for (double& value : values) value = std::pow(value, exponent);
  return values;
}

double relative(const Array& got, const Array& want) {
  double squares = 0, of = 0;
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    squares += std::pow(got.values[i] - want.values[i], 2);
    of += want.values[i] * want.values[i];
  }
  return std::sqrt(squares / of);
}

constexpr double smallest = 1e-3;
// Rounding of B against its smallest eigenvalue, a few times for the sums.
template <class T>
double root_tolerance(std::size_t d) {
  return 10 * double(d) * epsilon<T> / smallest;
}

TYPED_TEST(InverseRoot, EighAndNewtonGiveTheRoot) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  for (std::size_t d : {1, 2, 7, 33, 70, 300}) {
    const Array q = random_basis(d, 2);
    const std::vector<double> values = spectrum(d, smallest);
    const Field<T, Exec> factor(with_eigenvalues(q, values)), basis(d, d), root(d, d);
    Rig<Exec, T> rig(d);
    for (double exponent : {0.25, 1.0, 0.5, 1.0 / 3, 0.2}) {
      if (d > 100 && exponent != 0.25) break;
      const RootRule rule{.exponent = exponent, .scale = 2, .eps = 0, .max_iterations = 0};
      std::vector<double> doubled = values;
      for (double& value : doubled) value *= 2;
      const Array want = with_eigenvalues(q, powers(doubled, -exponent));
      ASSERT_TRUE((inverse_root_eigh<Exec, T>(rig.tools(), rule, factor.read(), basis.matrix(), root.matrix())));
      EXPECT_LE(relative(root.get(), want), root_tolerance<T>(d)) << d << " " << exponent;
      EXPECT_EQ(largest_difference(root.get(), transposed(root.get())), 0);
      ASSERT_TRUE((inverse_root_newton<Exec, T>(rig.tools(), rule, factor.read(), root.matrix()))) << d << exponent;
      EXPECT_LE(relative(root.get(), want), root_tolerance<T>(d)) << d << " " << exponent;
      EXPECT_EQ(largest_difference(root.get(), transposed(root.get())), 0);
    }
  }
}

TYPED_TEST(InverseRoot, QrFromTheEigenbasisIsTheRootAndFromAnotherConverges) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  for (std::size_t d : {1, 2, 7, 33}) {
    const Array q = random_basis(d, 2);
    const std::vector<double> values = spectrum(d, smallest);
    const Field<T, Exec> factor(with_eigenvalues(q, values)), given(q), cold(random_basis(d, 3)), root(d, d);
    const Array want = with_eigenvalues(q, powers(values, -0.25));
    Rig<Exec, T> rig(d);
    const Array before = given.get();
    ASSERT_TRUE((inverse_root_qr<Exec, T>(rig.tools(), {.eps = 0, .tolerance = 1e-3}, factor.read(), given.matrix(),
                                          root.matrix())));
    expect_same(given.get(), before, "basis that is good enough");
    EXPECT_LE(relative(root.get(), want), root_tolerance<T>(d));
    // The criterion looks at the whole: small eigenvalues need more iterations than it asks for.
    ASSERT_TRUE((inverse_root_qr<Exec, T>(rig.tools(), {.eps = 0, .tolerance = 0, .max_iterations = 1000},
                                          factor.read(), cold.matrix(), root.matrix())));
    // It cannot see an off-diagonal below the root of rounding.
    EXPECT_LE(relative(root.get(), want), root_tolerance<T>(d) + 10 * std::sqrt(epsilon<T>));
    EXPECT_LE(largest_difference(product(transposed(cold.get()), cold.get()), identity(d)),
              20 * double(d) * epsilon<T>);
  }
}

TYPED_TEST(InverseRoot, RegularisesBeforeOrAfter) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  constexpr std::size_t d = 5;
  constexpr double eps = 0.125;
  const Array q = random_basis(d, 2);
  struct Example {
    std::vector<double> values;
    bool before;
    double shift;
  };
  for (const Example& s : {Example{{3, 2, 1, 0.5, 0.25}, true, eps}, Example{{3, 2, 1, 0.5, -0.25}, true, 0.25 + eps},
                           Example{{3, 2, 1, 0.5, 0.25}, false, eps}, Example{{3, 2, 1, 0.5, -0.25}, false, 0.25 + eps},
                           Example{{3, 2, 1, 0.5, 0}, true, eps}}) {
    std::vector<double> shifted = s.values;
    for (double& value : shifted) value += s.shift;
    const Field<T, Exec> factor(with_eigenvalues(q, s.values)), basis(q), root(d, d);
    Rig<Exec, T> rig(d);
    const Array want = with_eigenvalues(q, powers(shifted, -0.5));
    const RootRule rule{.exponent = 0.5, .eps = eps, .perturb_before = s.before};
    ASSERT_TRUE((inverse_root_qr<Exec, T>(rig.tools(), rule, factor.read(), basis.matrix(), root.matrix())));
    EXPECT_LE(relative(root.get(), want), 200 * epsilon<T>);
    ASSERT_TRUE((inverse_root_eigh<Exec, T>(rig.tools(), rule, factor.read(), basis.matrix(), root.matrix())));
    EXPECT_LE(relative(root.get(), want), 200 * epsilon<T>);
  }
}

TYPED_TEST(InverseRoot, SingularMatricesGiveFiniteRoots) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  constexpr std::size_t d = 24;
  const Array g = random_array(d, 3, 1);
  const Field<T, Exec> factor(product(g, transposed(g))), basis(d, d), root(d, d);
  Rig<Exec, T> rig(d);
  const RootRule rule{.eps = 1e-10, .max_iterations = 0};
  EXPECT_TRUE((inverse_root_eigh<Exec, T>(rig.tools(), rule, factor.read(), basis.matrix(), root.matrix())));
  EXPECT_TRUE((inverse_root_newton<Exec, T>(rig.tools(), rule, factor.read(), root.matrix())));
  // g^T K^(-1/2) g = (g^T g)^(1/2).
  const Array half = product(root.get(), g), quotient = product(transposed(half), half);
  EXPECT_LE(relative(product(quotient, quotient), product(transposed(g), g)), 1e3 * epsilon<T> + 1e-9);
}

TYPED_TEST(InverseRoot, SaysWhenThereIsNone) {
  using Exec = typename TypeParam::Exec;
  using T = typename TypeParam::T;
  constexpr std::size_t d = 4;
  const Field<T, Exec> zero(Array(d, d)), basis(identity(d)), root(d, d);
  Rig<Exec, T> rig(d);
  const RootRule rule{.eps = 0, .max_iterations = 0};
  EXPECT_FALSE((inverse_root_eigh<Exec, T>(rig.tools(), rule, zero.read(), basis.matrix(), root.matrix())));
  EXPECT_FALSE((inverse_root_qr<Exec, T>(rig.tools(), rule, zero.read(), basis.matrix(), root.matrix())));
  EXPECT_FALSE((inverse_root_newton<Exec, T>(rig.tools(), rule, zero.read(), root.matrix())));
}

TEST(InverseRoot, NewtonOrder) {
  EXPECT_EQ(newton_order(0.25), 4);
  EXPECT_EQ(newton_order(1.0 / 3), 3);
  EXPECT_EQ(newton_order(1), 1);
  EXPECT_EQ(newton_order(0.3), 0);
  EXPECT_EQ(newton_order(0), 0);
}

TEST(PackedSymmetric, IsRoundedOnceInBf16) {
  for (std::size_t d : {1, 2, 9, 64}) {
    const Array g = random_array(d, d, 5), a = rounded<float>(product(g, transposed(g)));
    const Field<float, Host> full(a), back(d, d);
    const Field<bf16, Host> packed(1, packed_size(d));
    pack_symmetric<Host>(Host(), full.read(), packed.vector());
    unpack_symmetric<Host>(Host(), packed.read_vector(), back.matrix());
    expect_same(back.get(), rounded<bf16>(a), "unpacked");
  }
}

TEST(PackedSymmetric, LosesNothing) {
  for (std::size_t d : {0, 1, 2, 9, 64}) {
    const Array g = random_array(d, d, 4);
    const Array a = rounded<float>(product(g, transposed(g)));
    const Field<float, Host> full(a), packed(1, packed_size(d)), back(d, d);
    pack_symmetric<Host>(Host(), full.read(), packed.vector());
    unpack_symmetric<Host>(Host(), packed.read_vector(), back.matrix());
    expect_same(back.get(), a, "unpacked");
    for (std::size_t i = 0; i < d; ++i) EXPECT_EQ(packed.get()(0, packed_size(i) + i), a(i, i));
  }
}

}  // namespace
}  // namespace sestina

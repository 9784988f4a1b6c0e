// Activations and biases against their definitions in double, gradients against differences of those definitions.
#include <limits>

#include "../reference.hpp"
#include "kernels/blas/math.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {
namespace {

using namespace reference;

Array plain_swiglu(const Array& x) {
  Array y(x.rows, x.cols / 2);
  for (std::size_t i = 0; i < y.rows; ++i) {
    for (std::size_t j = 0; j < y.cols; ++j) y(i, j) = x(i, j) / (1 + std::exp(-x(i, j))) * x(i, y.cols + j);
  }
  return y;
}

Array plain_gelu(const Array& x, GeluForm form) {
  Array y = x;
  for (double& v : y.values) {
    const double exact = std::erf(v / std::sqrt(2.0)),
                 approximate = std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v));
    v *= 0.5 * (1 + (form == GeluForm::exact ? exact : approximate));
  }
  return y;
}

Array plain_relu_squared(const Array& x) {
  Array y = x;
  for (double& v : y.values) v = v > 0 ? v * v : 0;
  return y;
}

// Each value takes a few roundings in Acc<T> (among them an exponential good to 2 units) and one to T.
template <class T>
constexpr double activation_tolerance = epsilon<T> + 8 * epsilon<Acc<T>>;

template <class C>
class Activation : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  Exec exec_;
};
TYPED_TEST_SUITE(Activation, AllCases);

TYPED_TEST(Activation, ReluSquaredBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  for (const auto& [n, f] : {std::array<std::size_t, 2>{5, 37}, {3, 64}, {1, 1}, {0, 8}}) {
    const Array x = rounded<T>(random_array(n, f, 1, 0, 3)), dy = rounded<T>(random_array(n, f, 2));
    Field<T, Exec> in(x, 3), out(n, f, 1), grad(dy, 2), dx(n, f, 5), again(n, f, 1);
    relu_squared<Exec, T>(this->exec_, in.read(), out.matrix());
    expect_close(out.get(), plain_relu_squared(x), activation_tolerance<T>, "relu squared");
    relu_squared_backward<Exec, T>(this->exec_, grad.read(), in.read(), dx.matrix(), again.matrix());
    const Array want = differences(x, [&](const Array& z) { return inner(plain_relu_squared(z), dy); });
    expect_close(dx.get(), want, activation_tolerance<T> + difference_tolerance, "relu squared gradient");
    expect_same(again.get(), out.get(), "relu squared written again");
    relu_squared_backward<Exec, T>(this->exec_, grad.read(), in.read(), in.matrix(), grad.matrix());
    expect_same(in.get(), dx.get(), "relu squared gradient in place");
    expect_same(grad.get(), again.get(), "relu squared written again over dy");
  }
  Array bad(1, 2, std::numeric_limits<double>::quiet_NaN());
  Field<T, Exec> in(bad), out(1, 2);
  relu_squared<Exec, T>(this->exec_, in.read(), out.matrix());
  EXPECT_TRUE(std::isnan(out.get()(0, 0)));
}

TYPED_TEST(Activation, SwigluBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  for (const auto& [n, f] : {std::array<std::size_t, 2>{5, 37}, {3, 64}, {1, 1}, {0, 8}, {4, 0}}) {
    const Array x = rounded<T>(random_array(n, 2 * f, 1, 0, 3)), dy = rounded<T>(random_array(n, f, 2));
    Field<T, Exec> in(x, 3), out(n, f, 1), grad(dy, 2), dx(n, 2 * f, 5), again(n, f, 1);
    swiglu<Exec, T>(this->exec_, in.read(), out.matrix());
    expect_close(out.get(), plain_swiglu(x), activation_tolerance<T>, "swiglu");
    swiglu_backward<Exec, T>(this->exec_, grad.read(), in.read(), dx.matrix(), again.matrix());
    const Array want = differences(x, [&](const Array& z) { return inner(plain_swiglu(z), dy); });
    expect_close(dx.get(), want, activation_tolerance<T> + difference_tolerance, "swiglu gradient");
    expect_close(again.get(), out.get(), activation_tolerance<T>, "swiglu written again");
    swiglu_backward<Exec, T>(this->exec_, grad.read(), in.read(), in.matrix(), grad.matrix());
    expect_same(in.get(), dx.get(), "swiglu gradient in place");
    expect_same(grad.get(), again.get(), "swiglu written again over dy");
  }
}

TYPED_TEST(Activation, GeluBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  for (const GeluForm form : {GeluForm::exact, GeluForm::tanh}) {
    for (const auto& [n, f] : {std::array<std::size_t, 2>{5, 37}, {3, 64}, {0, 8}}) {
      const Array x = rounded<T>(random_array(n, f, 1, 0, 2)), dy = rounded<T>(random_array(n, f, 2));
      Field<T, Exec> in(x, 3), out(n, f, 1), grad(dy, 2), dx(n, f, 5), again(n, f, 1);
      gelu<Exec, T>(this->exec_, form, in.read(), out.matrix());
      expect_close(out.get(), plain_gelu(x, form), activation_tolerance<T>, "gelu");
      gelu_backward<Exec, T>(this->exec_, form, grad.read(), in.read(), dx.matrix(), again.matrix());
      const Array want = differences(x, [&](const Array& z) { return inner(plain_gelu(z, form), dy); });
      expect_close(dx.get(), want, activation_tolerance<T> + difference_tolerance, "gelu gradient");
      expect_close(again.get(), out.get(), activation_tolerance<T>, "gelu written again");
      gelu_backward<Exec, T>(this->exec_, form, grad.read(), in.read(), in.matrix(), grad.matrix());
      expect_same(in.get(), dx.get(), "gelu gradient in place");
      expect_same(grad.get(), again.get(), "gelu written again over dy");
    }
  }
}

TYPED_TEST(Activation, BiasBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = Acc<T>;
  for (const auto& [n, d] : {std::array<std::size_t, 2>{70, 37}, {3, 300}, {0, 8}}) {
    const Array x = rounded<T>(random_array(n, d, 1)), b = rounded<A>(random_array(1, d, 2));
    Array want = x, sums(1, d, 0.25);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        want(i, j) += b(0, j);
        sums(0, j) += x(i, j);
      }
    }
    Field<T, Exec> y(x, 3), dy(x, 2);
    Field<A, Exec> bias(b), dbias(Array(1, d, 0.25));
    add_bias<Exec, T>(this->exec_, bias.read_vector(), y.matrix());
    expect_close(y.get(), want, epsilon<T>, "add_bias");
    Workspace<Exec> workspace(bytes_of<NormScratch<Exec, T>, Exec>(n, d));
    bias_backward<Exec, T>(this->exec_, dy.read(), dbias.vector(), workspace);
    expect_close(dbias.get(), sums, 16 * epsilon<A>, "dbias");
  }
}

TYPED_TEST(Activation, NonFiniteStaysNonFinite) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  Array x(3, 40, 1);
  x(0, 3) = nan, x(1, 3) = infinity, x(2, 3) = -infinity;
  Field<T, Exec> in(x), out(3, 20);
  swiglu<Exec, T>(this->exec_, in.read(), out.matrix());
  Array y = out.get();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(y(i, 3))) << i;
  for (const GeluForm form : {GeluForm::exact, GeluForm::tanh}) {
    Field<T, Exec> wide(3, 40);
    gelu<Exec, T>(this->exec_, form, in.read(), wide.matrix());
    y = wide.get();
    for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(y(i, 3))) << i;
  }
}

// Within 2 units in the last place wherever the result is normal, and the promised ends.
TEST(ExpFast, IsTheExponential) {
  double worst = 0;
  for (float x = -86.5f; x < 88.7f; x += 0.000917f) {
    const double want = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_fast(x)) - want) / want);
  }
  EXPECT_LT(worst, 2 * std::numeric_limits<float>::epsilon());
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_below_89(-infinity), 0.0f);
  EXPECT_EQ(exp_below_89(-1e30f), 0.0f);
  EXPECT_EQ(exp_below_89(-87.25f), 0.0f);
  EXPECT_TRUE(std::isfinite(exp_below_89(88.72f)));
  EXPECT_TRUE(std::isnan(exp_below_89(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(exp_fast(0.0f), 1.0f);
  EXPECT_EQ(exp_fast(-infinity), 0.0f);
  EXPECT_EQ(exp_fast(-1e30f), 0.0f);
  EXPECT_EQ(exp_fast(infinity), infinity);
  EXPECT_EQ(exp_fast(88.8f), infinity);
  EXPECT_TRUE(std::isfinite(exp_fast(88.72f)));
  EXPECT_TRUE(std::isnan(exp_fast(std::numeric_limits<float>::quiet_NaN())));
}

TEST(ActivationOnHost, BitsDoNotDependOnTheThreadCount) {
  const Array x = random_array(333, 96, 1);
  expect_same_for_any_thread_count([&](const Host& exec) {
    Field<float, Host> dy(x), dbias(Array(1, 96));
    Workspace<Host> workspace(bytes_of<NormScratch<Host, float>, Host>(333, 96));
    bias_backward<Host, float>(exec, dy.read(), dbias.vector(), workspace);
    return std::vector<Array>{dbias.get()};
  });
}

}  // namespace
}  // namespace sestina

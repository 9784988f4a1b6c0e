// Norms against their definitions in double, and their gradients against differences of those definitions.
#include <limits>

#include "../reference.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {
namespace {

using namespace reference;

// y = x / sqrt(mean(x^2) + eps) * weight over groups of weight.cols.
Array plain_rms_norm(const Array& x, const Array& weight, double eps) {
  Array y(x.rows, x.cols);
  const std::size_t d = weight.cols;
  for (std::size_t i = 0; i < x.rows; ++i) {
    for (std::size_t g = 0; g < x.cols; g += d) {
      double squares = 0;
      for (std::size_t j = 0; j < d; ++j) squares += x(i, g + j) * x(i, g + j);
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
      for (std::size_t j = 0; j < d; ++j) y(i, g + j) = x(i, g + j) * inverse * weight(0, j);
    }
  }
  return y;
}

Array plain_layer_norm(const Array& x, const Array& weight, const Array& bias, double eps) {
  Array y(x.rows, x.cols);
  const auto d = static_cast<double>(x.cols);
  for (std::size_t i = 0; i < x.rows; ++i) {
    double mean = 0, variance = 0;
    for (std::size_t j = 0; j < x.cols; ++j) mean += x(i, j) / d;
    for (std::size_t j = 0; j < x.cols; ++j) variance += (x(i, j) - mean) * (x(i, j) - mean) / d;
    for (std::size_t j = 0; j < x.cols; ++j) {
      y(i, j) = (x(i, j) - mean) / std::sqrt(variance + eps) * weight(0, j) + bias(0, j);
    }
  }
  return y;
}

Array plain_add(const Array& a, const Array& b) {
  Array sum = a;
  for (std::size_t i = 0; i < a.values.size(); ++i) sum.values[i] += b.values[i];
  return sum;
}

// A value passes through two or three roundings to T, and sums of d terms in Acc<T> whose error stays below sqrt(d) / 2
// of its unit for the widths here (d < 1000).
template <class T>
constexpr double norm_tolerance = 4 * epsilon<T> + 16 * epsilon<Acc<T>>;

template <class C>
class Norm : public testing::Test {
 protected:
  using Exec = typename C::Exec;
  using T = typename C::T;
  using A = Acc<T>;
  static constexpr double eps = 1e-5;
  Exec exec_;
};
TYPED_TEST_SUITE(Norm, AllCases);

TYPED_TEST(Norm, RmsNormIsItsDefinition) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  struct Size {
    std::size_t n, groups, d, pad;
  };
  for (const Size s :
       {Size{5, 1, 37, 0}, Size{33, 1, 256, 3}, Size{3, 4, 17, 5}, Size{1, 1, 1, 0}, Size{0, 1, 16, 0}}) {
    const Array x = rounded<T>(random_array(s.n, s.groups * s.d, 1)), w = rounded<A>(random_array(1, s.d, 2, 1, 0.2));
    Field<T, Exec> in(x, s.pad), out(s.n, s.groups * s.d, s.pad + 1);
    Field<A, Exec> weight(w), inverse(1, s.n * s.groups);
    rms_norm<Exec, T>(this->exec_, in.read(), weight.read_vector(), this->eps, out.matrix(), inverse.vector());
    expect_close(out.get(), plain_rms_norm(x, w, this->eps), norm_tolerance<T>, "rms_norm");
    rms_norm<Exec, T>(this->exec_, in.read(), weight.read_vector(), this->eps, in.matrix(), inverse.vector());
    expect_same(in.get(), out.get(), "rms_norm in place");
  }
}

TYPED_TEST(Norm, WithoutGainIsAGainOfOne) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  struct Size {
    std::size_t n, groups, d;
    bool adds;
  };
  for (const Size s : {Size{35, 1, 37, false}, Size{19, 1, 70, true}, Size{3, 4, 17, false}, Size{0, 1, 16, false}}) {
    const auto width = static_cast<std::int64_t>(s.d);
    const Array x = rounded<T>(random_array(s.n, s.groups * s.d, 1)), w(1, s.d, 1);
    const Array b = s.adds ? rounded<T>(random_array(s.n, s.d, 2)) : Array(0, 0);
    const Array in_norm = s.adds ? rounded<T>(plain_add(x, b)) : x;
    Field<T, Exec> in(x, 3), branch(b), sum(s.n, s.d), out(s.n, s.groups * s.d, 1), dx(s.n, s.groups * s.d, 4);
    Field<A, Exec> inverse(1, s.n * s.groups);
    gainless_rms_norm<Exec, T>(this->exec_, in.read(), branch.read(), width, this->eps, sum.matrix(), out.matrix(),
                               inverse.vector());
    expect_close(out.get(), plain_rms_norm(in_norm, w, this->eps), norm_tolerance<T>, "norm without gain");
    if (s.adds) expect_close(sum.get(), in_norm, epsilon<T>, "sum");
    const Array dy = rounded<T>(random_array(s.n, s.groups * s.d, 4)),
                r = rounded<T>(random_array(s.n, s.groups * s.d, 5));
    Field<T, Exec> normed(in_norm, 1), grad(dy, 1), residual(r, 2);
    const Array through =
        differences(in_norm, [&](const Array& z) { return inner(plain_rms_norm(z, w, this->eps), dy); });
    gainless_rms_norm_backward<Exec, T>(this->exec_, grad.read(), normed.read(), width, inverse.read_vector(),
                                        residual.read(), dx.matrix());
    expect_close(dx.get(), plain_add(through, r), norm_tolerance<T> + difference_tolerance, "dx");
    gainless_rms_norm_backward<Exec, T>(this->exec_, grad.read(), normed.read(), width, inverse.read_vector(), {},
                                        grad.matrix());
    expect_close(grad.get(), through, norm_tolerance<T> + difference_tolerance, "dx over dy, without a bypass");
  }
}

TYPED_TEST(Norm, AddRmsNormAddsThenNormalises) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  const std::size_t n = 19, d = 70;
  const Array x = rounded<T>(random_array(n, d, 1)), b = rounded<T>(random_array(n, d, 2));
  const Array w = rounded<A>(random_array(1, d, 3, 1, 0.2)), want = rounded<T>(plain_add(x, b));
  Field<T, Exec> in(x, 2), branch(b, 7), sum(n, d, 1), out(n, d);
  Field<A, Exec> weight(w), inverse(1, n);
  add_rms_norm<Exec, T>(this->exec_, in.read(), branch.read(), weight.read_vector(), this->eps, sum.matrix(),
                        out.matrix(), inverse.vector());
  expect_close(sum.get(), want, epsilon<T>, "sum");
  expect_close(out.get(), plain_rms_norm(want, w, this->eps), norm_tolerance<T>, "normalised sum");
  Field<T, Exec> only_sum(n, d);
  add<Exec, T>(this->exec_, in.read(), branch.read(), only_sum.matrix());
  expect_same(only_sum.get(), sum.get(), "add");
  add_rms_norm<Exec, T>(this->exec_, in.read(), branch.read(), weight.read_vector(), this->eps, in.matrix(),
                        out.matrix(), inverse.vector());
  expect_same(in.get(), sum.get(), "sum in place of x");
}

TYPED_TEST(Norm, RmsNormBackwardIsTheGradient) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  for (const auto& [n, groups, d] : {std::array<std::size_t, 3>{35, 1, 13}, {3, 4, 6}, {70, 1, 5}, {0, 1, 8}}) {
    const Array x = rounded<T>(random_array(n, groups * d, 1)), dy = rounded<T>(random_array(n, groups * d, 2));
    const Array w = rounded<A>(random_array(1, d, 3, 1, 0.2)), r = rounded<T>(random_array(n, groups * d, 4));
    Field<T, Exec> in(x, 3), grad(dy, 1), residual(r, 2), out(n, groups * d), dx(n, groups * d, 4);
    Field<A, Exec> weight(w), inverse(1, n * groups), dweight(Array(1, d, 0.5));
    rms_norm<Exec, T>(this->exec_, in.read(), weight.read_vector(), this->eps, out.matrix(), inverse.vector());
    Workspace<Exec> workspace(bytes_of<NormScratch<Exec, T>, Exec>(n, d));
    rms_norm_backward<Exec, T>(this->exec_, grad.read(), in.read(), weight.read_vector(), inverse.read_vector(),
                               residual.read(), dx.matrix(), dweight.vector(), workspace);
    const double eps = this->eps;
    const Array through = differences(x, [&](const Array& z) { return inner(plain_rms_norm(z, w, eps), dy); });
    Array along = differences(w, [&](const Array& z) { return inner(plain_rms_norm(x, z, eps), dy); });
    for (double& value : along.values) value += 0.5;
    expect_close(dx.get(), plain_add(through, r), norm_tolerance<T> + difference_tolerance, "dx");
    expect_close(dweight.get(), along, norm_tolerance<A> + difference_tolerance, "dweight");

    // Without the bypass, written over dy, with sums that take the place of what is there: without rows, 0.
    rms_norm_backward<Exec, T>(this->exec_, grad.read(), in.read(), weight.read_vector(), inverse.read_vector(), {},
                               grad.matrix(), {dweight.vector(), false}, workspace);
    expect_close(grad.get(), through, norm_tolerance<T> + difference_tolerance, "dx in place of dy");
    for (double& value : along.values) value -= 0.5;
    expect_close(dweight.get(), along, norm_tolerance<A> + difference_tolerance, "dweight in place of another");
  }
}

TYPED_TEST(Norm, LayerNormIsItsDefinitionBothWays) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  const double eps = this->eps;
  for (const auto& [n, d] : {std::array<std::size_t, 2>{35, 13}, {7, 66}, {0, 8}}) {
    const Array a = rounded<T>(random_array(n, d, 1, 0.5)), b = rounded<T>(random_array(n, d, 2));
    const Array w = rounded<A>(random_array(1, d, 3, 1, 0.2)), c = rounded<A>(random_array(1, d, 4));
    const Array dy = rounded<T>(random_array(n, d, 5)), r = rounded<T>(random_array(n, d, 6));
    const Array x = rounded<T>(plain_add(a, b));
    Field<T, Exec> in(a, 1), branch(b, 2), sum(n, d, 3), out(n, d, 4), grad(dy), residual(r, 1), dx(n, d, 2);
    Field<A, Exec> weight(w), bias(c), mean(1, n), inverse(1, n), dweight(Array(1, d, 0.5)), dbias(Array(1, d, 0.5));
    add_layer_norm<Exec, T>(this->exec_, in.read(), branch.read(), weight.read_vector(), bias.read_vector(), eps,
                            sum.matrix(), out.matrix(), mean.vector(), inverse.vector());
    expect_close(sum.get(), x, epsilon<T>, "sum");
    expect_close(out.get(), plain_layer_norm(x, w, c, eps), norm_tolerance<T>, "layer norm");
    Field<T, Exec> again(n, d);
    add_layer_norm<Exec, T>(this->exec_, sum.read(), {}, weight.read_vector(), bias.read_vector(), eps, {},
                            again.matrix(), mean.vector(), inverse.vector());
    expect_same(again.get(), out.get(), "layer norm without a branch");

    Workspace<Exec> workspace(bytes_of<NormScratch<Exec, T>, Exec>(n, d));
    layer_norm_backward<Exec, T>(this->exec_, grad.read(), sum.read(), weight.read_vector(), mean.read_vector(),
                                 inverse.read_vector(), residual.read(), dx.matrix(), dweight.vector(), dbias.vector(),
                                 workspace);
    EXPECT_EQ(workspace.peak(), workspace.capacity());
    const Array through = differences(x, [&](const Array& z) { return inner(plain_layer_norm(z, w, c, eps), dy); });
    Array dw = differences(w, [&](const Array& z) { return inner(plain_layer_norm(x, z, c, eps), dy); });
    Array db = differences(c, [&](const Array& z) { return inner(plain_layer_norm(x, w, z, eps), dy); });
    for (double& value : dw.values) value += 0.5;
    for (double& value : db.values) value += 0.5;
    expect_close(dx.get(), plain_add(through, r), norm_tolerance<T> + difference_tolerance, "dx");
    expect_close(dweight.get(), dw, norm_tolerance<A> + difference_tolerance, "dweight");
    expect_close(dbias.get(), db, norm_tolerance<A> + difference_tolerance, "dbias");
    layer_norm_backward<Exec, T>(this->exec_, grad.read(), sum.read(), weight.read_vector(), mean.read_vector(),
                                 inverse.read_vector(), {}, grad.matrix(), {dweight.vector(), false},
                                 {dbias.vector(), false}, workspace);
    expect_close(grad.get(), through, norm_tolerance<T> + difference_tolerance, "dx in place of dy");
    for (double& value : dw.values) value -= 0.5;
    for (double& value : db.values) value -= 0.5;
    expect_close(dweight.get(), dw, norm_tolerance<A> + difference_tolerance, "dweight in place of another");
    expect_close(dbias.get(), db, norm_tolerance<A> + difference_tolerance, "dbias in place of another");
  }
}

TYPED_TEST(Norm, NonFiniteRowsStayNonFinite) {
  using Exec = typename TestFixture::Exec;
  using T = typename TestFixture::T;
  using A = typename TestFixture::A;
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  Array x = random_array(3, 40, 1);
  for (std::size_t i = 0; i < 3; ++i) x(i, 7 * i) = bad[i];
  Field<T, Exec> in(x), out(3, 40);
  Field<A, Exec> weight(Array(1, 40, 1)), inverse(1, 3);
  rms_norm<Exec, T>(this->exec_, in.read(), weight.read_vector(), this->eps, out.matrix(), inverse.vector());
  const Array y = out.get();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(std::isfinite(y(i, 7 * i))) << i;
}

TEST(NormOnHost, BitsDoNotDependOnTheThreadCount) {
  const std::size_t n = 333, d = 96;
  const Array x = random_array(n, d, 1), dy = random_array(n, d, 2);
  expect_same_for_any_thread_count([&](const Host& exec) {
    Field<float, Host> in(x), grad(dy), out(n, d), dx(n, d), weight(Array(1, d, 1)), inverse(1, n),
        dweight(Array(1, d));
    Workspace<Host> workspace(bytes_of<NormScratch<Host, float>, Host>(n, d));
    rms_norm<Host, float>(exec, in.read(), weight.read_vector(), 1e-5, out.matrix(), inverse.vector());
    rms_norm_backward<Host, float>(exec, grad.read(), in.read(), weight.read_vector(), inverse.read_vector(), {},
                                   dx.matrix(), dweight.vector(), workspace);
    return std::vector<Array>{out.get(), dx.get(), dweight.get()};
  });
}

}  // namespace
}  // namespace sestina

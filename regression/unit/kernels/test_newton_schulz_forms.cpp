// The gram form of Newton-Schulz, its norm by the first product, rows made equal and the norm of the result, against
// the loops of newton_schulz_step.hpp; what either form executes.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_sets.hpp"
#include "regression/unit/kernels/plain_newton_schulz.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

using reference::Array;
using reference::Field;
using reference::newton_schulz_sample;
using reference::plain_newton_schulz;
using Form = NewtonSchulzForm;

constexpr std::size_t form_shapes[][2] = {{1, 1}, {1, 33}, {33, 1}, {7, 33}, {33, 7}, {24, 24}, {40, 90}};

struct FormResult {
  Array x;
  double flops = 0;
};

template <class Exec>
FormResult run_form(const Array& x, const NewtonSchulz& ns, bool in_bf16 = false, const Exec& exec = Exec()) {
  Gemm<Exec> gemm(exec, true);
  Workspace<Exec> workspace(
      bytes_taken<Exec>([&](auto& counter) { declare_orthogonalize<Exec>(counter, x.rows, x.cols, ns); }));
  const Field<float, Exec> in(x), out(x.rows, x.cols);
  orthogonalize<Exec>(exec, gemm, workspace, ns, in_bf16, in.read(), out.matrix());
  if (!in_bf16) EXPECT_EQ(workspace.peak(), workspace.capacity());
  return {out.get(), gemm.take_count().flops};
}

template <class Exec>
class NewtonSchulzForms : public testing::Test {};
TYPED_TEST_SUITE(NewtonSchulzForms, reference::StreamSpaces, reference::SpaceNames);

// Rounding of R and Q is relative to their largest values: a singular value that is a tenth of the largest at a restart
// has a hundredth of its digits less in R. So ten times the bound of the plain form (test_newton_schulz.cpp).
double form_tolerance(const Array& x) { return 300 * double(x.rows + x.cols) * std::numeric_limits<float>::epsilon(); }

TYPED_TEST(NewtonSchulzForms, GramIsPlain) {
  for (const auto& [set, count] : std::vector<std::pair<std::string, std::int64_t>>{
           {"simple", 1}, {"simple", 2}, {"simple", 5}, {"quintic", 5}, {"cubic5", 5}, {"polar_express", 8}}) {
    const auto steps = newton_schulz_steps(set, count);
    for (const auto& [rows, cols] : form_shapes) {
      const Array x = newton_schulz_sample(rows, cols);
      const NewtonSchulz ns = {steps, 1e-7, NewtonSchulzNorm::max, Form::gram};
      SCOPED_TRACE(testing::Message() << set << " " << count << ", " << rows << " x " << cols);
      reference::expect_close(run_form<TypeParam>(x, ns).x, plain_newton_schulz(x, ns), form_tolerance(x), "gram form");
    }
  }
}

// In bf16 the (s, s) matrices are in float, and Q is rounded once for several steps: no worse than the plain form,
// whose result is off by about 2 % of its root mean square.
TYPED_TEST(NewtonSchulzForms, GramInBf16IsAsNearAsPlain) {
  const auto steps = newton_schulz_steps("simple", 5);
  for (const bool balanced : {false, true})
    for (const auto& [rows, cols] : form_shapes) {
      const NewtonSchulz ns = {steps, 1e-7, NewtonSchulzNorm::max, Form::gram, balanced, balanced, balanced};
      const Array x = newton_schulz_sample(rows, cols), want = plain_newton_schulz(x, ns),
                  got = run_form<TypeParam>(x, ns, true).x;
      double difference = 0;
      for (std::size_t i = 0; i < got.values.size(); ++i) difference += std::pow(got.values[i] - want.values[i], 2);
      EXPECT_LT(std::sqrt(difference / reference::inner(want, want)), 0.05) << rows << " x " << cols;
    }
}

// Every combination of the keys, in both forms.
TYPED_TEST(NewtonSchulzForms, NormAndBalancesFollowTheirRules) {
  const auto steps = newton_schulz_steps("simple", 5), cubic = newton_schulz_steps("cubic5", 5);
  for (const bool gram_norm : {false, true})
    for (const bool equal_rows : {false, true})
      for (const bool snap : {false, true})
        for (const Form form : {Form::plain, Form::gram})
          for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{7, 33}, {33, 7}, {20, 20}, {1, 16}}) {
            Array x = newton_schulz_sample(rows, cols);
            for (std::size_t j = 0; j < cols; ++j) x(rows / 2, j) *= 16;  // a row that is longer than the others
            SCOPED_TRACE(testing::Message()
                         << gram_norm << equal_rows << snap << int(form) << ", " << rows << " x " << cols);
            for (const auto& set : {steps, cubic}) {
              const NewtonSchulz ns = {set, 1e-7, NewtonSchulzNorm::max, form, gram_norm, equal_rows, snap};
              const Array got = run_form<TypeParam>(x, ns).x;
              reference::expect_close(got, plain_newton_schulz(x, ns), form_tolerance(x), "direction");
              if (snap) EXPECT_NEAR(reference::inner(got, got), double(std::min(rows, cols)), 1e-4);
            }
          }
}

// Below eps a matrix is shrunk, by the norm that is chosen, in either wording.
TYPED_TEST(NewtonSchulzForms, EpsIsOfTheNormThatIsChosen) {
  const auto steps = newton_schulz_steps("simple", 5);
  for (const double size : {1e-7, 1e-3})
    for (const NewtonSchulzNorm norm : {NewtonSchulzNorm::max, NewtonSchulzNorm::add})
      for (const bool equal_rows : {false, true}) {
        Array x = newton_schulz_sample(9, 14);
        for (double& value : x.values) value *= size;
        x = reference::rounded<float>(x);
        const NewtonSchulz ns = {steps, 1e-5, norm, Form::plain, true, equal_rows};
        reference::expect_close(run_form<TypeParam>(x, ns).x, plain_newton_schulz(x, ns), form_tolerance(x), "small");
      }
}

TYPED_TEST(NewtonSchulzForms, ZeroGivesZeroAndNanIsNotHidden) {
  const auto steps = newton_schulz_steps("simple", 5);
  for (const bool in_bf16 : {false, true})
    for (const double eps : {1e-7, 0.0})
      for (const Form form : {Form::plain, Form::gram}) {
        const NewtonSchulz ns = {steps, eps, NewtonSchulzNorm::max, form, true, true, true};
        reference::expect_same(run_form<TypeParam>(Array(12, 40), ns, in_bf16).x, Array(12, 40), "of zero");
        Array x = newton_schulz_sample(12, 40);
        for (std::size_t j = 0; j < x.cols; ++j) x(7, j) = 0;
        const Array y = run_form<TypeParam>(x, ns, in_bf16).x;
        for (std::size_t j = 0; j < x.cols; ++j) ASSERT_EQ(y(7, j), 0);
        x(3, 4) = std::numeric_limits<double>::quiet_NaN();
        const Array bad = run_form<TypeParam>(x, ns, in_bf16).x;
        for (const double value : bad.values) ASSERT_TRUE(std::isnan(value));
      }
}

// The products of either form are those that are stated, and automatic takes the fewer.
TYPED_TEST(NewtonSchulzForms, ExecutesWhatItStates) {
  for (const auto& [set, count] : std::vector<std::pair<std::string, std::int64_t>>{
           {"simple", 5}, {"simple", 2}, {"polar_express", 8}, {"cubic5", 5}}) {
    const auto steps = newton_schulz_steps(set, count);
    for (const auto& [rows, cols] : form_shapes) {
      const Array x = newton_schulz_sample(rows, cols);
      const auto s = double(std::min(rows, cols)), l = double(std::max(rows, cols));
      const double plain = newton_schulz_flops(steps, false, s, l), gram = newton_schulz_flops(steps, true, s, l);
      const auto executed = [&](Form form, bool gram_norm) {
        return run_form<TypeParam>(x, {steps, 1e-7, NewtonSchulzNorm::max, form, gram_norm}).flops;
      };
      for (const bool gram_norm : {false, true}) {
        EXPECT_EQ(executed(Form::plain, gram_norm), plain);
        EXPECT_EQ(executed(Form::gram, gram_norm), gram);
        EXPECT_EQ(executed(Form::automatic, gram_norm), std::min(plain, gram));
      }
    }
  }
  // By hand, five steps, l = 4 s: 15 s^2 l + 5 s^3, and 6 s^2 l + 5 s^3 + 3 2 s^3 + 3 3 s^3.
  const auto five = newton_schulz_steps("simple", 5);
  EXPECT_EQ(newton_schulz_flops(five, false, 1, 4), 65);
  EXPECT_EQ(newton_schulz_flops(five, true, 1, 4), 44);
  EXPECT_TRUE(takes_gram_form({five, 1e-7, NewtonSchulzNorm::max, Form::automatic}, 768, 3072));
  EXPECT_FALSE(takes_gram_form({five, 1e-7, NewtonSchulzNorm::max, Form::automatic}, 1024, 1024));
}

TEST(NewtonSchulzForm, SameBitsOnOneThreadAndOnAll) {
  const auto steps = newton_schulz_steps("simple", 5);
  const NewtonSchulz ns = {steps, 1e-7, NewtonSchulzNorm::max, Form::gram, true, true, true};
  for (const bool in_bf16 : {false, true}) {
    const Array x = newton_schulz_sample(40, 90), one = run_form<Serial>(x, ns, in_bf16).x;
    for (const int threads : {1, 2})
      reference::expect_same(run_form<Host>(x, ns, in_bf16, Host(threads)).x, one, "threads");
  }
}

}  // namespace
}  // namespace sestina

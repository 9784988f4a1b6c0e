// The last pass of updates that are subject to rules, against the rules as plain loops in double. Tolerance: an element
// passes some ten roundings of fp32, and its factors, which come from sums in double, are rounded once each.
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/optimizer/shaped_move.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

template <class Space>
class ShapedMoves : public testing::Test {};
TYPED_TEST_SUITE(ShapedMoves, StreamSpaces, SpaceNames);

struct RuleCase {
  const char* what;
  UpdateRules rules;
  double weight_decay = 0;
};

std::vector<RuleCase> rule_cases() {
  return {{"none", {}, 0.5},
          {"hyperball", {.hyperball = true}, 0.5},
          {"relative", {.relative_update = true}},
          {"floor below", {.update_floor = 1e-3}},
          {"floor above", {.update_floor = 3}},
          {"row floor", {.row_floor = 1.2}, 0.25},
          {"both floors", {.update_floor = 1.1, .row_floor = 1.2}},
          {"largest", {.max_update_rms = 0.125}},
          {"given", {.update_rms = 0.25}},
          {"brake", {.radial_brake = 0.5}},
          {"pin", {.radius_pin = true}, 0.125},
          {"cautious", {.cautious = true}, 0.5},
          {"all",
           {.update_floor = 0.9,
            .row_floor = 0.4,
            .max_update_rms = 2,
            .radial_brake = 0.5,
            .radius_pin = true,
            .cautious = true},
           0.25}};
}

template <class Space>
Array shaped(const RuleCase& c, const Array& w, const Array& u, double lr, bool with_rounded, Array* rounded_weight) {
  Array movement = u;
  for (double& x : movement.values) x = -x;
  const Field<float, Space> z(movement), master(w);
  const Field<bf16, Space> weight(w.rows, w.cols);
  Workspace<Space> workspace(
      bytes_taken<Space>([&](auto& counter) { declare<ShapedMoveScratch<Space>>(counter, w.rows); }));
  const Matrix<bf16, Space> to = with_rounded ? weight.matrix() : Matrix<bf16, Space>();
  shaped_move<Space>(Space(), {c.rules, lr, c.weight_decay}, z.matrix(), master.matrix(), to, workspace);
  if (rounded_weight != nullptr) *rounded_weight = weight.get();
  return master.get();
}

// sign -1: U leads outward, as <U, W> < 0; 1: inward; 0: neither.
TYPED_TEST(ShapedMoves, AreAsWritten) {
  constexpr std::pair<std::size_t, std::size_t> sizes[] = {{1, 1}, {1, 33}, {70, 1}, {13, 17}, {6, 5000}, {67, 129}};
  constexpr double lr = 0.375;
  for (const RuleCase& c : rule_cases())
    for (const auto& [m, n] : sizes)
      for (const double sign : {-1.0, 0.0, 1.0}) {
        SCOPED_TRACE(testing::Message() << c.what << " " << m << " x " << n << " sign " << sign);
        const Array w = rounded<float>(random_array(m, n, 1));
        Array u = random_array(m, n, 2);
        for (std::size_t i = 0; i < u.values.size(); ++i) u.values[i] += sign * w.values[i];
        u = rounded<float>(u);
        Array expected = w, bits(m, n);
        shaped_move_plain(c.rules, lr, c.weight_decay, m, n, u.values, expected.values);
        const Array got = shaped<TypeParam>(c, w, u, lr, true, &bits);
        expect_close(got, expected, few_roundings, "weight");
        expect_close(bits, rounded<bf16>(got), 0, "rounded weight");
      }
}

// The norm of the weight stays, and a pinned one is what the radial part alone makes of it.
TYPED_TEST(ShapedMoves, KeepNorms) {
  const Array w = rounded<float>(random_array(40, 60, 3)), u = rounded<float>(random_array(40, 60, 4));
  const auto norm = [](const Array& a) {
    return std::sqrt(std::inner_product(a.values.begin(), a.values.end(), a.values.begin(), 0.0));
  };
  const RuleCase ball{"hyperball", {.hyperball = true}};
  Array now = w;
  for (int t = 0; t < 50; ++t) now = shaped<TypeParam>(ball, now, u, 0.02, false, nullptr);
  EXPECT_NEAR(norm(now) / norm(w), 1, few_roundings);
  double dot = 0;
  for (std::size_t i = 0; i < w.values.size(); ++i) dot += w.values[i] * u.values[i];
  const Array pinned = shaped<TypeParam>({"pin", {.radius_pin = true}}, w, u, 0.1, false, nullptr);
  EXPECT_NEAR(norm(pinned) / (norm(w) - 0.1 * dot / norm(w)), 1, few_roundings);
}

TYPED_TEST(ShapedMoves, ZeroMovesNothingAndZeroWeightsMoveFreely) {
  const Array w = rounded<float>(random_array(5, 7, 5)), zero(5, 7);
  for (const RuleCase& c : rule_cases()) {
    SCOPED_TRACE(c.what);
    Array still = w, moved = zero;
    shaped_move_plain(c.rules, 0.5, c.weight_decay, 5, 7, zero.values, still.values);
    shaped_move_plain(c.rules, 0.5, c.weight_decay, 5, 7, w.values, moved.values);
    expect_close(shaped<TypeParam>(c, w, zero, 0.5, false, nullptr), still, few_roundings, "no update");
    expect_close(shaped<TypeParam>(c, zero, w, 0.5, false, nullptr), moved, few_roundings, "no weight");
  }
}

// NaN comes through to the weights, and raises the flag.
TYPED_TEST(ShapedMoves, NonfiniteUpdatesAreFlagged) {
  Array u = random_array(4, 4, 6);
  u.values[5] = std::numeric_limits<double>::quiet_NaN();
  const Field<float, TypeParam> z(u), master(random_array(4, 4, 7));
  const Field<double, TypeParam> flag(1, 1);
  Workspace<TypeParam> workspace(
      bytes_taken<TypeParam>([&](auto& counter) { declare<ShapedMoveScratch<TypeParam>>(counter, std::size_t{4}); }));
  shaped_move<TypeParam>(TypeParam(), {{.hyperball = true}, 0.1, 0, flag.matrix().data()}, z.matrix(), master.matrix(),
                         {}, workspace);
  EXPECT_EQ(flag.get().values[0], 1);
}

}  // namespace
}  // namespace sestina::reference

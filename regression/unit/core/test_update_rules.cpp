// Rules on updates inside optimizers: every kind moves by them as by its own step, and what they cannot act on is
// refused; schedules of decay and momentum.
#include <gtest/gtest.h>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "core/deck/update_rules.hpp"
#include "matrix_rig.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina::reference {
namespace {

class RulesOfKinds : public testing::TestWithParam<std::string> {};

// The update of a kind is what its step takes from a matrix of zeros at learning rate 1; the weight moves by it as the
// rules are written. Tolerance: few roundings of fp32 of a weight of size 1 in each of the updates.
TEST_P(RulesOfKinds, MoveByTheRules) {
  constexpr std::size_t m = 12, n = 20;
  constexpr unsigned updates = 4;
  constexpr double tolerance = updates * 64 * std::numeric_limits<float>::epsilon();
  const UpdateRules all[] = {{.hyperball = true}, {.update_floor = 0.5, .radius_pin = true, .cautious = true}};
  for (const UpdateRules& rules : all) {
    MatrixRig<Serial> alone(GetParam(), m, n, {}, {}, 2);
    MatrixOptions options = alone.options;
    options.rules = rules;
    const auto optimizer = make_matrix_optimizer<Serial>(Serial(), options, {"/optimizer/w", m, n, 0});
    Stream<Serial> stream{
        Serial(), Gemm<Serial>(Serial(), true),
        Workspace<Serial>(bytes_taken<Serial>([&](auto& counter) { declare_update<Serial>(counter, options, m, n); }))};
    const Field<float, Serial> master(alone.weight), gradient(m, n);
    Array expected = alone.weight;
    for (unsigned t = 1; t <= updates; ++t) {
      const Array g = gradient_at(m, n, t);
      alone.set_master(Array(m, n));
      Array update = alone.step(g, 1, 0);
      for (double& x : update.values) x = -x;
      shaped_move_plain(rules, 0.125, 0.25, m, n, update.values, expected.values);
      set_values(gradient.matrix(), g);
      step_matrix<Serial>(stream, *optimizer, {t, 0.125, 0.25, 1}, {"w", gradient.matrix(), master.matrix(), {}},
                          rules);
    }
    expect_close(master.get(), expected, tolerance, "weight");
    EXPECT_LE(stream.workspace.peak(), stream.workspace.capacity());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RulesOfKinds, testing::ValuesIn(kind_names()), kind_test_name);

// Tolerance: few roundings of fp32 in each of the updates, relative to weights of size 1.
TEST(AdamKind, IsAdamWOnWholeMatrices) {
  constexpr std::size_t m = 9, n = 14;
  constexpr int updates = 6;
  constexpr double beta1 = 0.9, beta2 = 0.95, eps = 1e-3, lr = 0.0625, decay = 0.25, clip = 0.5;
  MatrixRig<Serial> rig("adam", m, n, {{"eps", eps}});
  Array w = rig.weight, momentum(m, n), moment(m, n);
  for (int t = 1; t <= updates; ++t) {
    const Array g = gradient_at(m, n, static_cast<unsigned>(t));
    const double bc1 = 1 - std::pow(beta1, t), bc2 = 1 - std::pow(beta2, t);
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      const double x = clip * g.values[i];
      momentum.values[i] += (1 - beta1) * (x - momentum.values[i]);
      moment.values[i] += (1 - beta2) * (x * x - moment.values[i]);
      w.values[i] -=
          lr * decay * w.values[i] + lr * momentum.values[i] / bc1 / (std::sqrt(moment.values[i] / bc2) + eps);
    }
    expect_close(rig.step(g, lr, decay, clip), w, updates * 16 * std::numeric_limits<float>::epsilon(), "weight");
  }
}

std::string errors_of(const std::string& more) {
  Deck deck;
  deck.add_text("[run]\nsteps = 10\n[model]\npreset = \"llama-8m\"\n[optimizer]\nkind = \"muon\"\n" + more, "deck",
                ".");
  const Options options = Options::read(deck);
  static_cast<void>(options);
  try {
    deck.finish();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(UpdateRulesOfADeck, AreRefusedWhereTheyCannotAct) {
  EXPECT_EQ(errors_of("hyperball = true\n"), "");
  EXPECT_EQ(errors_of("cautious = true\nupdate_floor = 0.35\nrow_floor = 0.3\nradial_brake = 0.5\nradius_pin = true\n"),
            "");
  const auto refuses = [](const std::string& deck, const std::string& text) {
    EXPECT_NE(errors_of(deck).find(text), std::string::npos) << deck << errors_of(deck);
  };
  refuses("hyperball = true\nweight_decay = 0.1\n", "nothing decays on the hyperball");
  refuses("hyperball = true\ncautious = true\n", "optimizer.cautious");
  refuses("hyperball = true\n[model.linear]\nform = \"lora\"\n", "does not train the matrices");
  refuses("cautious = true\n[parallel]\ntp = 2\ntp_update = \"distributed\"\n", "parallel.tp_update");
  refuses("radial_brake = 1.5\n", "optimizer.radial_brake");
  refuses("momentum_schedule = [[10, 0.9], [5, 0.8]]\n", "updates do not rise");
  refuses("momentum_schedule = [[0, 1.0]]\n", "a momentum out of range");
  refuses("momentum_schedule = [[0, 0.9, 1]]\n", "an array of arrays of 2 numbers");
  refuses("decay_schedule = \"linear\"\n", "optimizer.decay_schedule");
}

TEST(UpdateSchedules, FollowTheUpdates) {
  UpdateSchedule schedule;
  EXPECT_EQ(schedule.decay_factor(7, 0.3), 1);
  EXPECT_FALSE(schedule.momentum_at(7));
  schedule.decay = UpdateSchedule::Decay::rate;
  EXPECT_EQ(schedule.decay_factor(7, 0.3), 0.3);
  schedule.decay = UpdateSchedule::Decay::cosine;
  schedule.steps = 100;
  EXPECT_NEAR(schedule.decay_factor(50, 0.3), 0.5, 1e-15);  // cos(pi / 2) is 6e-17 in double
  EXPECT_EQ(schedule.decay_factor(100, 0.3), 0);
  EXPECT_EQ(schedule.decay_factor(101, 0.3), 0);
  schedule.momentum = {{1, 0.8}, {5, 0.9}, {10, 0.9}, {12, 0.5}};
  EXPECT_EQ(schedule.momentum_at(0), 0.8);
  EXPECT_NEAR(*schedule.momentum_at(3), 0.85, 1e-15);
  EXPECT_EQ(schedule.momentum_at(7), 0.9);
  EXPECT_NEAR(*schedule.momentum_at(11), 0.7, 1e-15);
  EXPECT_EQ(schedule.momentum_at(50), 0.5);
}

}  // namespace
}  // namespace sestina::reference

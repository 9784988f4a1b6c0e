#include <gtest/gtest.h>

#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"

namespace sestina {
namespace {

ModelConfig sharp_llama() {
  ModelConfig c = small_model(Family::llama);
  c.initializer_range = 1.5;  // so that scores are large
  return c;
}

template <class T>
struct ClipRig {
  explicit ClipRig(double threshold, double lr = 0)
      : run(sharp_llama(), {2, 8, false, true, false}, options(threshold, lr)) {
    run.stage.initialise(3);
    for (int i = 0; i < 18; ++i) tokens[i] = (7 * i + 3) % 23;
    run.load(tokens);
  }
  const OptimizerOptions* options(double threshold, double lr) {
    optimizer.qk_clip = threshold;
    optimizer.adamw.lr = lr;
    optimizer.adamw.weight_decay = 0;
    return &optimizer;
  }
  // The largest score per layer and head of a forward pass, over both sequences.
  double largest(int layer, int group) {
    const Vector<Acc<T>, Host> scores = run.stage.qk_clip()->scores(0, layer, 0, 4);
    return static_cast<double>(std::max(scores(2 * group), scores(2 * group + 1)));
  }
  OptimizerOptions optimizer;
  StageRig<Host, T> run;
  std::int32_t tokens[18];
};

TEST(QkClip, BringsTheLargestScoreOfAGroupBackToTheThreshold) {
  ClipRig<float> rig(1e30);
  rig.run.forward_backward(1, 0);
  const double before = rig.largest(0, 0), other = rig.largest(0, 1);
  ASSERT_GT(before, 1);
  const double threshold = 0.6 * std::max(before, other);
  ClipRig<float> clipped(threshold);
  clipped.run.forward_backward(1, 0);
  EXPECT_EQ(clipped.largest(0, 0), before);
  clipped.run.update(1, 1.0, 1.0);  // the rate is 0: only the clip acts
  clipped.run.forward_backward(1, 0);
  // Layer 0 sees the same input: its scores are products of one scaled q and one scaled k, a few roundings each.
  for (const int group : {0, 1}) {
    const double was = group == 0 ? before : other;
    EXPECT_NEAR(clipped.largest(0, group), std::min(was, threshold), 1e-5 * was);
  }
}

TEST(QkClip, LeavesSmallScoresAlone) {
  ClipRig<bf16> rig(1e30), plain(0);
  for (ClipRig<bf16>* each : {&rig, &plain}) {
    each->run.forward_backward(1, 0);
    each->run.update(1, 1.0, 1.0);
  }
  for (std::size_t i = 0; i < plain.run.stage.tensors().size(); ++i) {
    const auto a = rig.run.stage.tensors()[i].master, b = plain.run.stage.tensors()[i].master;
    for (std::size_t j = 0; j < a.size(); ++j) ASSERT_EQ(a(j), b(j));
  }
}

TEST(QkClip, TakesTheLargestOverMicroBatches) {
  ClipRig<float> rig(1e30);
  rig.run.forward_backward(1, 0);
  const double first = rig.largest(1, 0);
  for (auto& token : rig.tokens) token = (token + 11) % 23;
  rig.run.load(rig.tokens);
  rig.run.forward_backward(1, 1);
  const double both = rig.largest(1, 0);
  rig.run.forward_backward(1, 0);
  EXPECT_EQ(both, std::max(first, rig.largest(1, 0)));
}

// Passes of the next minibatches may come before an update: each has its place, and theirs does not change.
TEST(QkClip, KeepsTheScoresOfMinibatchesApart) {
  ClipRig<float> rig(1e30);
  QkClip<Host, float>& clip = *rig.run.stage.qk_clip();
  rig.run.forward_backward(1, 0);
  const double first = rig.largest(0, 0);
  clip.keep(2);
  const auto forward = [&](std::int64_t minibatch) {
    rig.run.stage.start_step(minibatch);
    rig.run.stage.watch(rig.run.slot[0], minibatch);
    rig.run.forward();
    rig.run.stage.ignore(rig.run.slot[0]);
  };
  const auto sent = [&](std::int64_t minibatch) {
    clip.send(Host(), minibatch);
    return std::max(clip.take()[0], clip.take()[1]);
  };
  forward(4);
  for (auto& token : rig.tokens) token = (token + 11) % 23;
  rig.run.load(rig.tokens);
  forward(5);
  rig.run.forward();  // nobody watches
  EXPECT_EQ(sent(4), first);
  const double second = sent(5);
  EXPECT_NE(second, first);
  forward(6);
  EXPECT_EQ(sent(6), second);
  EXPECT_EQ(sent(5), second);
}

}  // namespace
}  // namespace sestina

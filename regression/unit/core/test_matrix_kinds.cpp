// What every entry of the table of matrix optimizers must do, whatever its rule is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "core/optimizer/kinds/matrix_optimizer.hpp"
#include "kernels/base/random.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina {
namespace {

struct Shape {
  std::size_t rows, cols;
};
constexpr Shape shapes[] = {{5, 5}, {12, 8}, {8, 12}, {33, 7}, {1, 16}, {16, 1}, {1, 1}};

// One matrix and its optimizer.
template <class Space>
struct Rig {
  Rig(const MatrixKind& kind, Shape shape, const Space& exec = Space())
      : options(default_options(kind)),
        optimizer(
            make_matrix_optimizer<Space>(exec, short_period(options), {"/optimizer/w", shape.rows, shape.cols, 0})),
        lane{exec, Gemm<Space>(exec, true), Workspace<Space>(optimizer->workspace_bytes()), {}, 0, 0},
        gradient("g", shape.rows, shape.cols),
        master("w", shape.rows, shape.cols),
        rounded("b", shape.rows, shape.cols) {
    for (std::size_t i = 0; i < master.size(); ++i) master.data()[i] = static_cast<float>(normal(1, i));
  }
  static MatrixOptions& short_period(MatrixOptions& options) {
    options.refresh_every = 3;  // so that a short run refreshes more than once
    return options;
  }

  void random_gradient(std::int64_t t, double scale = 1) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient.data()[i] = static_cast<float>(scale * static_cast<float>(normal(static_cast<std::uint64_t>(t) + 7, i)));
  }
  void step(std::int64_t t, double lr = 0.05, double weight_decay = 0.1, double gradient_scale = 1) {
    const std::size_t m = master.extent(0), n = master.extent(1);
    optimizer->step(lane, {t, lr, weight_decay, gradient_scale},
                    {"w", {gradient.data(), m, n}, {master.data(), m, n}, {rounded.data(), m, n}});
    lane.exec.fence();
  }
  void run(std::int64_t from, std::int64_t to) {
    for (std::int64_t t = from; t <= to; ++t) {
      random_gradient(t);
      step(t);
    }
  }
  std::vector<float> weights() const { return {master.data(), master.data() + master.size()}; }

  MatrixOptions options;
  std::unique_ptr<MatrixOptimizer<Space>> optimizer;
  Lane<Space> lane;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> gradient, master;
  Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace> rounded;
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

bool all_finite(const std::vector<float>& values) {
  for (const float value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

class EveryKind : public testing::TestWithParam<std::string> {
 protected:
  const MatrixKind& kind() const { return *find_matrix_kind(GetParam()); }
};

TEST_P(EveryKind, KeepsTheStateThatItsKindLists) {
  for (const Shape shape : shapes) {
    Rig<Serial> rig(kind(), shape);
    const auto planned =
        kind().state(rig.options, static_cast<std::int64_t>(shape.rows), static_cast<std::int64_t>(shape.cols));
    const auto fields = rig.optimizer->state().fields();
    ASSERT_EQ(fields.size(), planned.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      EXPECT_EQ(fields[i].path, "/optimizer/w/" + planned[i].name);
      EXPECT_EQ(fields[i].bytes(),
                static_cast<std::size_t>(planned[i].rows * planned[i].cols) * size_of(planned[i].dtype));
      names.insert(fields[i].path);
    }
    EXPECT_EQ(names.size(), fields.size());
  }
}

TEST_P(EveryKind, MovesAllShapesAndStaysFinite) {
  for (const Shape shape : shapes) {
    Rig<Serial> rig(kind(), shape);
    const auto before = rig.weights();
    rig.run(1, 8);
    EXPECT_TRUE(all_finite(rig.weights())) << shape.rows << " x " << shape.cols;
    EXPECT_NE(rig.weights(), before) << shape.rows << " x " << shape.cols;
    for (std::size_t i = 0; i < rig.master.size(); ++i)
      EXPECT_EQ(rig.rounded.data()[i].bits, bf16(rig.master.data()[i]).bits);
  }
}

// An update that overflows raises the flag, and no other does. Serial lanes and all threads on one matrix.
TEST_P(EveryKind, AWeightThatIsNotFiniteRaisesTheFlag) {
  const auto flag_after = [this](auto space, double lr) {
    double flag = 0;
    Rig<decltype(space)> rig(kind(), {33, 70}, space);
    rig.lane.nonfinite = &flag;
    for (std::int64_t t = 1; t <= 3; ++t) {
      rig.random_gradient(t);
      rig.step(t, t == 3 ? lr : 0.05);
    }
    return flag;
  };
  EXPECT_EQ(flag_after(Serial(), 0.05), 0);
  EXPECT_EQ(flag_after(Host(), 0.05), 0);
  EXPECT_EQ(flag_after(Serial(), 1e300), 1);
  EXPECT_EQ(flag_after(Host(), 1e300), 1);
}

TEST_P(EveryKind, OneThreadAndManyGiveTheSameBits) {
  for (const Shape shape : shapes) {
    Rig<Serial> one(kind(), shape);
    Rig<Host> all(kind(), shape);
    one.run(1, 8);
    all.run(1, 8);
    expect_same_bits(one.weights(), all.weights());
  }
}

TEST_P(EveryKind, GoesOnFromItsStateToTheSameBits) {
  for (const std::int64_t stop : {1, 2, 5}) {
    Rig<Serial> whole(kind(), {12, 8}), first(kind(), {12, 8}), second(kind(), {12, 8});
    whole.run(1, 9);
    first.run(1, stop);
    const auto from = first.optimizer->state().fields();
    auto to = second.optimizer->state().fields();
    for (std::size_t i = 0; i < to.size(); ++i) std::memcpy(to[i].data, from[i].data, to[i].bytes());
    std::memcpy(second.master.data(), first.master.data(), first.master.size() * sizeof(float));
    second.run(stop + 1, 9);
    expect_same_bits(second.weights(), whole.weights());
  }
}

TEST_P(EveryKind, SeesTheClippedGradient) {
  Rig<Serial> scaled(kind(), {9, 8}), clipped(kind(), {9, 8});
  for (std::int64_t t = 1; t <= 7; ++t) {
    scaled.random_gradient(t, 0.25);
    scaled.step(t);
    clipped.random_gradient(t);
    clipped.step(t, 0.05, 0.1, 0.25);  // a power of two: nothing is rounded
  }
  for (std::size_t i = 0; i < scaled.master.size(); ++i)  // products of scaled factors may be summed in another order
    EXPECT_NEAR(scaled.master.data()[i], clipped.master.data()[i], 1e-4) << i;
}

TEST_P(EveryKind, ZeroGradientOnlyDecays) {
  for (const Shape shape : {Shape{12, 8}, Shape{1, 16}}) {
    Rig<Serial> rig(kind(), shape);
    const auto before = rig.weights();
    for (std::int64_t t = 1; t <= 5; ++t) rig.step(t);
    const double most = std::pow(1 - 0.05 * 0.1, 5);  // a first call that only sets up does not decay
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double ratio = rig.weights()[i] / before[i];
      EXPECT_GE(ratio, most - 1e-6);
      EXPECT_LE(ratio, 1 + 1e-6);
    }
    rig.run(6, 9);  // and then it works as ever
    EXPECT_TRUE(all_finite(rig.weights()));
    EXPECT_NE(rig.weights(), before);
  }
}

TEST_P(EveryKind, SurvivesZeroGradientsInBetweenAndLowRank) {
  Rig<Serial> rig(kind(), {12, 8});
  for (std::int64_t t = 1; t <= 12; ++t) {
    rig.random_gradient(t);
    if (t % 4 == 0) Kokkos::deep_copy(rig.gradient, 0.0f);
    for (std::size_t i = 0; i < 12; ++i)
      for (std::size_t j = 0; j < 8; ++j)
        if (i > 1 || j > 2) rig.gradient(i, j) = 0;  // rows and columns without any gradient, rank 2
    rig.step(t);
    ASSERT_TRUE(all_finite(rig.weights())) << "update " << t;
  }
}

TEST_P(EveryKind, ZeroLearningRateMovesNothing) {
  Rig<Serial> rig(kind(), {8, 12});
  const auto before = rig.weights();
  for (std::int64_t t = 1; t <= 4; ++t) {
    rig.random_gradient(t);
    rig.step(t, 0.0);
  }
  expect_same_bits(rig.weights(), before);
}

// |W - target|^2 / 2: the gradient points away from the target.
TEST_P(EveryKind, DescendsAQuadratic) {
  Rig<Serial> rig(kind(), {12, 8});
  const auto distance = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < rig.master.size(); ++i) sum += std::pow(rig.master.data()[i] - 0.5, 2);
    return std::sqrt(sum);
  };
  const double before = distance();
  for (std::int64_t t = 1; t <= 600; ++t) {
    for (std::size_t i = 0; i < rig.master.size(); ++i) rig.gradient.data()[i] = rig.master.data()[i] - 0.5f;
    rig.step(t, 0.2 * (1 - static_cast<double>(t) / 610), 0);
  }
  EXPECT_LT(distance(), 0.7 * before);  // GaLore moves two directions at a time, by a quarter of a step
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, testing::ValuesIn(kind_names()), kind_test_name);

}  // namespace
}  // namespace sestina

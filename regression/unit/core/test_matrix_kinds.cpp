// What every entry of the table of matrix optimizers must do, whatever its rule is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "core/optimizer/base/matrix_optimizer.hpp"
#include "kernels/base/random.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

struct Shape {
  std::size_t rows, cols;
};
constexpr Shape kind_shapes[] = {{5, 5}, {12, 8}, {8, 12}, {33, 7}, {1, 16}, {16, 1}, {1, 1}};

// One matrix and its optimizer. The numbers that tests set and look at lie on the host; a step takes them to the space
// and back.
template <class Space>
struct KindRig {
  KindRig(const MatrixKind& kind, Shape shape, const Space& exec = Space())
      : options(default_options(kind)),
        optimizer(
            make_matrix_optimizer<Space>(exec, short_period(options), {"/optimizer/w", shape.rows, shape.cols, 0})),
        stream{exec, Gemm<Space>(exec, true), Workspace<Space>(bytes_taken<Space>([&](auto& counter) {
                 declare_update<Space>(counter, short_period(options), shape.rows, shape.cols);
               }))},
        gradient("g", shape.rows, shape.cols),
        master("w", shape.rows, shape.cols),
        rounded("b", shape.rows, shape.cols),
        gradient_there(Kokkos::create_mirror_view(typename Space::memory_space(), gradient)),
        master_there(Kokkos::create_mirror_view(typename Space::memory_space(), master)),
        rounded_there(Kokkos::create_mirror_view(typename Space::memory_space(), rounded)) {
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
    Kokkos::deep_copy(gradient_there, gradient);
    Kokkos::deep_copy(master_there, master);
    optimizer->step(stream, {t, lr, weight_decay, gradient_scale},
                    {"w", Matrix<const float, Space>(gradient_there.data(), m, n),
                     Matrix<float, Space>(master_there.data(), m, n), Matrix<bf16, Space>(rounded_there.data(), m, n)});
    stream.exec.fence();
    Kokkos::deep_copy(master, master_there);
    Kokkos::deep_copy(rounded, rounded_there);
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
  Stream<Space> stream;
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> gradient, master;
  Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace> rounded;

 private:
  Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> gradient_there, master_there;
  Kokkos::View<bf16**, Kokkos::LayoutRight, typename Space::memory_space> rounded_there;
};

// The state of one optimizer into that of another on the same space.
template <class Space>
void copy_state(MatrixOptimizer<Space>& from, MatrixOptimizer<Space>& to) {
  const auto source = from.state().fields();
  auto target = to.state().fields();
  for (std::size_t i = 0; i < target.size(); ++i) {
    const std::size_t n = target[i].bytes();
    const auto copy = write_to(target[i]);
    if (target[i].on_device)
      Kokkos::deep_copy(Vector<std::byte, Space>(copy.view(), n),
                        Vector<const std::byte, Space>(static_cast<const std::byte*>(source[i].data), n));
    else
      std::memcpy(copy.view(), source[i].data, n);
  }
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

bool all_finite(const std::vector<float>& values) {
  for (const float value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

// Each test goes through the table.
template <class Space>
class EveryKind : public testing::Test {
 protected:
  template <class F>
  void each(const F& test) const {
    for (const MatrixKind& kind : matrix_kinds()) {
      SCOPED_TRACE(kind.name);
      test(kind);
    }
  }
};
TYPED_TEST_SUITE(EveryKind, reference::StreamSpaces, reference::SpaceNames);

TYPED_TEST(EveryKind, KeepsTheStateThatItsKindLists) {
  this->each([](const MatrixKind& kind) {
    for (const Shape shape : kind_shapes) {
      KindRig<TypeParam> rig(kind, shape);
      const auto planned =
          kind.state(rig.options, static_cast<std::int64_t>(shape.rows), static_cast<std::int64_t>(shape.cols));
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
  });
}

TYPED_TEST(EveryKind, MovesAllShapesAndStaysFinite) {
  this->each([](const MatrixKind& kind) {
    for (const Shape shape : kind_shapes) {
      KindRig<TypeParam> rig(kind, shape);
      const auto before = rig.weights();
      rig.run(1, 8);
      EXPECT_TRUE(all_finite(rig.weights())) << shape.rows << " x " << shape.cols;
      EXPECT_NE(rig.weights(), before) << shape.rows << " x " << shape.cols;
      for (std::size_t i = 0; i < rig.master.size(); ++i)
        EXPECT_EQ(rig.rounded.data()[i].bits, bf16(rig.master.data()[i]).bits);
    }
  });
}

// An update that overflows raises the flag, and no other does.
TYPED_TEST(EveryKind, AWeightThatIsNotFiniteRaisesTheFlag) {
  this->each([](const MatrixKind& kind) {
    const auto flag_after = [&](double lr) {
      const Kokkos::View<double*, typename TypeParam::memory_space> flag("flag", 1);
      KindRig<TypeParam> rig(kind, {33, 70});
      rig.stream.nonfinite = flag.data();
      for (std::int64_t t = 1; t <= 3; ++t) {
        rig.random_gradient(t);
        rig.step(t, t == 3 ? lr : 0.05);
      }
      return reference::values_of(flag)(0, 0);
    };
    EXPECT_EQ(flag_after(0.05), 0);
    EXPECT_EQ(flag_after(1e300), 1);
  });
}

TEST(EveryKind, OneThreadAndManyGiveTheSameBits) {
  for (const MatrixKind& kind : matrix_kinds()) {
    SCOPED_TRACE(kind.name);
    for (const Shape shape : kind_shapes) {
      KindRig<Serial> one(kind, shape);
      KindRig<Host> all(kind, shape);
      one.run(1, 8);
      all.run(1, 8);
      expect_same_bits(one.weights(), all.weights());
    }
  }
}

TYPED_TEST(EveryKind, GoesOnFromItsStateToTheSameBits) {
  this->each([](const MatrixKind& kind) {
    for (const std::int64_t stop : {1, 2, 5}) {
      KindRig<TypeParam> whole(kind, {12, 8}), first(kind, {12, 8}), second(kind, {12, 8});
      whole.run(1, 9);
      first.run(1, stop);
      copy_state(*first.optimizer, *second.optimizer);
      std::memcpy(second.master.data(), first.master.data(), first.master.size() * sizeof(float));
      second.run(stop + 1, 9);
      expect_same_bits(second.weights(), whole.weights());
    }
  });
}

TYPED_TEST(EveryKind, SeesTheClippedGradient) {
  this->each([](const MatrixKind& kind) {
    KindRig<TypeParam> scaled(kind, {9, 8}), clipped(kind, {9, 8});
    for (std::int64_t t = 1; t <= 7; ++t) {
      scaled.random_gradient(t, 0.25);
      scaled.step(t);
      clipped.random_gradient(t);
      clipped.step(t, 0.05, 0.1, 0.25);  // a power of two: nothing is rounded
    }
    for (std::size_t i = 0; i < scaled.master.size(); ++i)  // products of scaled factors may be summed in another order
      EXPECT_NEAR(scaled.master.data()[i], clipped.master.data()[i], 1e-4) << i;
  });
}

TYPED_TEST(EveryKind, ZeroGradientOnlyDecays) {
  this->each([](const MatrixKind& kind) {
    for (const Shape shape : {Shape{12, 8}, Shape{1, 16}}) {
      KindRig<TypeParam> rig(kind, shape);
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
  });
}

TYPED_TEST(EveryKind, SurvivesZeroGradientsInBetweenAndLowRank) {
  this->each([](const MatrixKind& kind) {
    KindRig<TypeParam> rig(kind, {12, 8});
    for (std::int64_t t = 1; t <= 12; ++t) {
      rig.random_gradient(t);
      if (t % 4 == 0) Kokkos::deep_copy(rig.gradient, 0.0f);
      for (std::size_t i = 0; i < 12; ++i)
        for (std::size_t j = 0; j < 8; ++j)
          if (i > 1 || j > 2) rig.gradient(i, j) = 0;  // rows and columns without any gradient, rank 2
      rig.step(t);
      ASSERT_TRUE(all_finite(rig.weights())) << "update " << t;
    }
  });
}

TYPED_TEST(EveryKind, ZeroLearningRateMovesNothing) {
  this->each([](const MatrixKind& kind) {
    KindRig<TypeParam> rig(kind, {8, 12});
    const auto before = rig.weights();
    for (std::int64_t t = 1; t <= 4; ++t) {
      rig.random_gradient(t);
      rig.step(t, 0.0);
    }
    expect_same_bits(rig.weights(), before);
  });
}

// |W - target|^2 / 2: the gradient points away from the target.
TYPED_TEST(EveryKind, DescendsAQuadratic) {
  this->each([](const MatrixKind& kind) {
    KindRig<TypeParam> rig(kind, {12, 8});
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
  });
}

}  // namespace
}  // namespace sestina

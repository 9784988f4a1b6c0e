// Passes of Adam in rotated bases over many matrices at once: against plain loops in double, and on hosts with the bits
// of the passes over one matrix after the other.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer/batch/rotated_batch.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina::reference {
namespace {

// One is longer than a piece, and one shorter than what it is aligned to.
const std::vector<std::size_t> batch_lengths = {1, 4096, 9000, 63, 130};
constexpr AdamRule batch_rule{0.9, 0.75, 1e-3};

Array numbers(std::size_t n, unsigned seed) { return rounded<float>(random_array(1, n, seed)); }
Array positive(std::size_t n, unsigned seed) {
  Array a = numbers(n, seed);
  for (double& x : a.values) x = static_cast<double>(static_cast<float>(x * x));
  return a;
}

template <class Space>
struct BatchData {
  using F = Field<float, Space>;
  BatchData() {
    std::vector<FlatMatrix> matrices;
    for (std::size_t i = 0; i < batch_lengths.size(); ++i) {
      const std::size_t n = batch_lengths[i];
      const auto seed = 10 * static_cast<unsigned>(i);
      gradients.emplace_back(numbers(n, seed));
      momenta.emplace_back(numbers(n, seed + 1));
      moments.emplace_back(positive(n, seed + 2));
      masters.emplace_back(numbers(n, seed + 3));
      weights.emplace_back(std::size_t{1}, n);
      FlatMatrix one;
      one.gradient = gradients[i].matrix().data();
      one.momentum = momenta[i].matrix().data();
      one.second_moment = moments[i].matrix().data();
      one.master = masters[i].matrix().data();
      one.weight = i % 2 == 0 ? weights[i].matrix().data() : nullptr;
      one.lr = 0.5 + 0.25 * double(i);
      one.weight_decay = 0.125 * double(i);
      one.rows = 1;
      one.cols = static_cast<std::uint32_t>(n);
      one.apart = n;
      one.stack = i == 1 ? 0 : 2;
      matrices.push_back(one);
    }
    batch = make_flat_batch<Space>(matrices);
    memory = std::make_unique<F>(rounded<float>(random_array(3, batch.elements, 99)));
    stacks = {memory->matrix().data(), batch.elements};
  }
  // Of matrix i, what lies in stack `number` (0: scratch, 1: rotated, 2: move).
  Array piece(std::size_t i, std::size_t number) const {
    const Array all = memory->get();
    const auto from =
        all.values.begin() + static_cast<std::ptrdiff_t>(number * batch.elements + batch.matrices[i].place);
    Array part(1, batch_lengths[i]);
    std::copy_n(from, batch_lengths[i], part.values.begin());
    return part;
  }
  std::vector<F> gradients, momenta, moments, masters;
  std::vector<Field<bf16, Space>> weights;
  std::unique_ptr<F> memory;
  FlatBatch<Space> batch;
  FlatStacks stacks;
};

template <class Space>
class RotatedBatches : public testing::Test {};
TYPED_TEST_SUITE(RotatedBatches, StreamSpaces, SpaceNames);

TYPED_TEST(RotatedBatches, AverageMomenta) {
  BatchData<TypeParam> run, alone;
  average_momenta<TypeParam>(TypeParam(), 0.9, 0.25, run.batch);
  for (std::size_t i = 0; i < batch_lengths.size(); ++i) {
    const Array g = run.gradients[i].get();
    Array want = alone.momenta[i].get();
    for (std::size_t j = 0; j < g.values.size(); ++j) want.values[j] += 0.1 * (0.25 * g.values[j] - want.values[j]);
    expect_close(run.momenta[i].get(), want, few_roundings, "momentum");
    average_momentum<TypeParam>(TypeParam(), 0.9, 0.25, line(alone.gradients[i].read()),
                                line(alone.momenta[i].matrix()));
    expect_both<TypeParam>(run.momenta[i].get(), alone.momenta[i].get(), "momentum as alone");
  }
}

TYPED_TEST(RotatedBatches, MakeDirections) {
  BatchData<TypeParam> run, alone;
  rotated_adam<TypeParam>(TypeParam(), batch_rule, run.batch, run.stacks, 1, 2);
  for (std::size_t i = 0; i < batch_lengths.size(); ++i) {
    const Array g = alone.piece(i, 1);
    Array v = alone.moments[i].get(), d = alone.piece(i, 2);
    for (std::size_t j = 0; j < g.values.size(); ++j) {
      v.values[j] += 0.25 * (g.values[j] * g.values[j] - v.values[j]);
      d.values[j] /= std::sqrt(v.values[j]) + 1e-3;
    }
    expect_close(run.moments[i].get(), v, few_roundings, "second moment");
    expect_close(run.piece(i, 2), d, few_roundings, "direction");
    expect_same(run.piece(i, 1), g, "gradient in the basis");
    const Field<float, TypeParam> direction(alone.piece(i, 2)), gradient(g);
    rotated_adam<TypeParam>(TypeParam(), batch_rule, line(gradient.read()), line(alone.moments[i].matrix()),
                            line(direction.matrix()));
    expect_both<TypeParam>(run.moments[i].get(), alone.moments[i].get(), "second moment as alone");
    expect_both<TypeParam>(run.piece(i, 2), direction.get(), "direction as alone");
  }
}

TYPED_TEST(RotatedBatches, MoveWeights) {
  for (const bool decay_first : {true, false}) {
    BatchData<TypeParam> run, alone;
    const Kokkos::View<double*, typename TypeParam::memory_space> flag("flag", 1);
    const WeightMove move{0.25, 0.5, 0.75, decay_first, flag.data()};
    move_weights<TypeParam>(TypeParam(), move, run.batch, run.stacks);
    for (std::size_t i = 0; i < batch_lengths.size(); ++i) {
      const FlatMatrix& own = run.batch.matrices[i];
      const WeightMove mine{move.lr * own.lr, move.scale, move.weight_decay * own.weight_decay, decay_first,
                            flag.data()};
      const Array d = alone.piece(i, own.stack);
      const double keep = 1 - mine.lr * mine.weight_decay, length = mine.lr * mine.scale;
      Array want = alone.masters[i].get();
      for (std::size_t j = 0; j < want.values.size(); ++j) {
        double& w = want.values[j];
        w = decay_first ? keep * w - length * d.values[j] : keep * (w - length * d.values[j]);
      }
      expect_close(run.masters[i].get(), want, few_roundings, "weight");
      if (own.weight != nullptr) expect_same(run.weights[i].get(), rounded<bf16>(run.masters[i].get()), "rounded");
      const Field<float, TypeParam> direction(d);
      move_weight<TypeParam, float>(TypeParam(), mine, line(direction.read()), line(alone.masters[i].matrix()), {});
      expect_both<TypeParam>(run.masters[i].get(), alone.masters[i].get(), "weight as alone");
    }
    EXPECT_EQ(values_of(flag).values[0], 0);
  }
}

TYPED_TEST(RotatedBatches, TellOfNumbersThatAreNot) {
  BatchData<TypeParam> run;
  const Kokkos::View<double*, typename TypeParam::memory_space> flag("flag", 1);
  Array bad = run.masters[2].get();
  bad.values[8999] = std::nan("");
  set_values(run.masters[2].matrix(), bad);
  move_weights<TypeParam>(TypeParam(), {0.25, 1, 0, true, flag.data()}, run.batch, run.stacks);
  EXPECT_EQ(values_of(flag).values[0], 1);
}

}  // namespace
}  // namespace sestina::reference

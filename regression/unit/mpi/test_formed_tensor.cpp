// Weights in another form than dense, cut by tensor parallelism, against one rank.
#include <gtest/gtest.h>

#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Ranks: FormedTensor 2 4
template <class Space>
class FormedTensor : public testing::Test {};
TYPED_TEST_SUITE(FormedTensor, reference::RunSpaces, reference::SpaceNames);

using TpUpdate = ParallelOptions::TpUpdate;
using Variant = LinearOptions::Variant;

// Four heads and four shards: over two ranks, or four. Merged after the third update.
TrainingCase cut_case(const std::string& form, const char* optimizer, int tp, Family family = Family::llama) {
  TrainingCase run = training_case(optimizer, family);
  Options& o = run.options;
  o.model.num_key_value_heads = 4;
  o.model.intermediate_size = 96;
  o.data.sequence_length = o.model.max_position_embeddings = 13;
  LinearOptions& linear = o.model.linear;
  linear.form = form;
  linear.rank = 5;
  linear.block_size = 4;
  linear.shards = form == "poet-x" ? 4 : 1;
  linear.merge_every = 3;
  o.parallel.tp = tp;
  o.parallel.dp = world().size() / tp;
  o.parallel.bucket_elements = 20000;
  return run;
}

struct Distance {
  double loss = 0, weights = 0;  // relative, the largest of all updates; relative, Frobenius, of what is no index
  std::int64_t indices = 0;      // that differ
};

Distance distance(const TrainingCase& run, const Trained& one, const Trained& other) {
  Distance d{largest_difference(one, other)};
  double moved = 0, size = 0;
  std::size_t at = 0;
  for (const TensorSpec& spec : tensor_specs(run.options.model))
    for (std::int64_t i = 0; i < spec.elements(); ++i, ++at) {
      const double a = one.weights[at], b = other.weights[at];
      if (!spec.trainable && spec.stored == Stored::index) {
        d.indices += a != b ? 1 : 0;
        continue;
      }
      moved += (a - b) * (a - b);
      size += a * a;
    }
  d.weights = std::sqrt(moved / size);
  return d;
}

// As grids of dense weights (Drift). Rotations: three times that, for merges round on the way to dense weights and
// back. The factors of a skew-symmetric gradient have their eigenvalues in pairs, and any basis of a pair's plane will
// do: SOAP takes another one after another rounding, as basis rotation does where a sort is another. Of adapters one
// factor begins at zero: AdamW divides the other's first gradients by themselves (at most 6e-5 was seen), and so do
// others in part.
void expect_as_alone(const TrainingCase& run, const Trained& together, const Trained& one, const std::string& what) {
  const Distance d = distance(run, one, together);
  const std::string& kind = run.options.optimizer.kind;
  const bool adapters = run.options.model.linear.form == "lora", adamw = kind == "adamw";
  const Drift allowed = allowed_drift(!adapters && kind == "soap" ? "basis-rotation" : kind, 5);
  EXPECT_LT(d.loss, (adapters ? 10 : 3) * allowed.loss) << what;
  EXPECT_LT(d.weights, (!adapters ? 3 : adamw ? 50 : 5) * allowed.weights) << what;
  EXPECT_EQ(d.indices, 0) << what;
  EXPECT_NE(one.loss.front(), one.loss.back());
}

TYPED_TEST(FormedTensor, RanksTrainAsOneRank) {
  for (const std::string form : {"poet-x", "lora"})
    for (const Family family : {Family::llama, Family::olmo2, Family::gpt})
      for (int tp = 2; tp <= world().size(); tp *= 2) {
        TrainingCase run = cut_case(form, "adamw", tp, family);
        if (family == Family::gpt) run.options.model.attention_bias = true;
        run.options.model.linear.one_block = family == Family::olmo2;
        const Trained one = train_alone<float, TypeParam>(alone(run), 5);
        for (const Variant variant : {Variant::fast, Variant::mem})
          for (const bool split : {true, false}) {
            const bool plain = variant == Variant::fast && split;
            if (!plain && (form == "lora" ? variant == Variant::mem : family != Family::llama)) continue;
            run.options.model.linear.variant = variant;
            run.options.parallel.sequence_parallel = split;
            expect_as_alone(run, train_together<float, TypeParam>(run, 5), one,
                            fmt::format("{} {}, tp {}, {}", form, static_cast<int>(variant), tp, split));
          }
      }
}

struct CodesApart {
  double share = 0, most = 0;  // of codes that differ; by how much
};
CodesApart codes_apart(const TrainingCase& run, const Trained& one, const Trained& other) {
  CodesApart d;
  double count = 0;
  std::size_t at = 0;
  for (const TensorSpec& spec : tensor_specs(run.options.model))
    for (std::int64_t i = 0; i < spec.elements(); ++i, ++at) {
      if (spec.part != 0) continue;
      const double by = std::abs(double(one.weights[at]) - double(other.weights[at]));
      d.share += by > 0 ? 1 : 0;
      d.most = std::max(d.most, by);
      count += 1;
    }
  d.share /= count;
  return d;
}

// Groups of coded weights stay in shards: ranks have the codes of one rank, until a merge rounds weights that sums in
// another order have moved by some eps, of which a few are nearer to the next code then.
TYPED_TEST(FormedTensor, CodedWeightsTrainAsOnOneRank) {
  for (int tp = 2; tp <= world().size(); tp *= 2)
    for (const auto& [steps, bits] : {std::pair(2, 8), std::pair(5, 8), std::pair(2, 4), std::pair(5, 4)}) {
      TrainingCase run = cut_case("poet-x", "adamw", tp);
      run.options.model.linear.variant = Variant::xq;
      run.options.model.linear.group_size = 12;
      run.options.model.linear.base_bits = bits;
      run.options.model.linear.residual = bits == 4;
      const Trained one = train_alone<float, TypeParam>(alone(run), steps),
                    together = train_together<float, TypeParam>(run, steps);
      const CodesApart d = codes_apart(run, one, together);
      EXPECT_LT(largest_difference(one, together), (steps == 2 ? 3 : 300) * allowed_drift("adamw", 5).loss) << tp;
      EXPECT_LE(d.share, steps == 2 ? 0 : 1e-3) << tp;
      EXPECT_LE(d.most, 1) << tp;
      EXPECT_NE(one.loss.front(), one.loss.back());
    }
}

TYPED_TEST(FormedTensor, MatrixOptimizersTrainAdapters) {
  for (const char* kind : {"muon", "soap"})
    for (const TpUpdate update : {TpUpdate::home, TpUpdate::duplicated, TpUpdate::distributed}) {
      if (update == TpUpdate::distributed && kind != std::string("muon")) continue;
      TrainingCase run = cut_case("lora", kind, 2);
      run.options.parallel.tp_update = update;
      const Trained one = train_alone<float, TypeParam>(alone(run), 5);
      expect_as_alone(run, train_together<float, TypeParam>(run, 5), one,
                      fmt::format("{}, tp_update {}", kind, static_cast<int>(update)));
    }
}

// The state of a rotation's blocks of numbers is that of one rank, which its ranks share; drift as of other moments in
// 8 bits.
TYPED_TEST(FormedTensor, CodedMomentsTurnRotations) {
  TrainingCase run = cut_case("poet-x", "adamw", world().size());
  run.options.model.head_dim = 16;
  run.options.model.intermediate_size = 128;
  run.options.optimizer.state_block = 8;
  run.options.model.linear.state_bits = 8;
  const Trained one = train_alone<float, TypeParam>(alone(run), 5), together = train_together<float, TypeParam>(run, 5);
  const Distance d = distance(run, one, together);
  const Drift allowed = allowed_drift(adamw_8bit, 5);
  EXPECT_LT(d.loss, 3 * allowed.loss);
  EXPECT_LT(d.weights, 3 * allowed.weights);
  EXPECT_EQ(d.indices, 0);
  run.options.model.linear.state_bits = 32;
  const Trained numbers = train_alone<float, TypeParam>(alone(run), 5);
  EXPECT_NE(numbers.loss, one.loss);
}

// Each rank updates the blocks that it holds, whatever becomes of other matrices: the same bits with every tp_update.
// In the last case layers of the MLP are dense, with a home each.
TYPED_TEST(FormedTensor, MatrixOptimizersTurnRotations) {
  for (const auto& [kind, mixed] :
       {std::pair("muon", false), std::pair("shampoo", false), std::pair("soap", false), std::pair("muon", true)}) {
    TrainingCase run = cut_case("poet-x", kind, 2);
    if (mixed) {
      run.options.model.intermediate_size = 92;
      run.options.model.linear.dense_if_indivisible = true;
    }
    const std::string what = fmt::format("{}, mixed {}", kind, mixed);
    const Trained one = train_alone<float, TypeParam>(alone(run), 5), home = train_together<float, TypeParam>(run, 5);
    expect_as_alone(run, home, one, what);
    for (const TpUpdate update : {TpUpdate::duplicated, TpUpdate::blockwise}) {
      if (mixed && update == TpUpdate::blockwise) continue;  // another algorithm for what is dense
      run.options.parallel.tp_update = update;
      const Trained other = train_together<float, TypeParam>(run, 5);
      EXPECT_EQ(home.loss, other.loss) << what << ", tp_update " << static_cast<int>(update);
      EXPECT_TRUE(home.weights == other.weights) << what << ", tp_update " << static_cast<int>(update);
    }
  }
}

// Two key and value heads over four ranks: each is held by two of them.
TYPED_TEST(FormedTensor, SharedHeadsTrainAdapters) {
  TrainingCase run = cut_case("lora", "adamw", world().size());
  run.options.model.num_key_value_heads = 2;
  const Trained one = train_alone<float, TypeParam>(alone(run), 5);
  expect_as_alone(run, train_together<float, TypeParam>(run, 5), one, "shared heads");
}

// In two stages of two ranks: the bits of those ranks without stages.
TYPED_TEST(FormedTensor, StagesOfRanksGiveTheirBitsWithoutStages) {
  if (world().size() != 4) return;
  const auto half = world().split(world().rank() / 2, world().rank());
  for (const auto& [form, optimizer] :
       {std::pair("poet-x", "adamw"), std::pair("poet-x", "soap"), std::pair("lora", "adamw")}) {
    TrainingCase run = cut_case(form, optimizer, 2);
    run.options.parallel.dp = 1;
    const Trained flat = train_on<float, TypeParam>(*half, run, 5);
    run.options.model.tie_word_embeddings = false;
    run.options.parallel.pp = 2;
    const Trained staged = train_on<float, TypeParam>(world(), run, 5);
    EXPECT_EQ(flat.loss, staged.loss) << form;
    EXPECT_TRUE(flat.weights == staged.weights) << form;
  }
}

}  // namespace
}  // namespace sestina

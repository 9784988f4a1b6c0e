// The model on the ranks of a tensor-parallel group against the whole model, which every rank runs by itself with the
// same weights: losses and all gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "parallel/comm/tensor_group.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/mpi/ranks.hpp"
#include "regression/unit/spaces.hpp"

namespace sestina {
namespace {

struct Case {
  int batch = 3, sequence = 7;  // 21 rows: uneven over 2 and 4 ranks
  bool sequence_parallel = true, recompute = false, masked = false;
};

ModelConfig shared_model(Family family, bool tied) {
  ModelConfig c = small_model(family);
  c.intermediate_size = 16;
  c.attention_bias = family == Family::gpt || family == Family::llama;
  c.tie_word_embeddings = tied;
  if (family == Family::gpt) c.position = tied ? ModelConfig::Position::rope : ModelConfig::Position::learned;
  if (!is_mixture(family)) return c;
  c.moe_intermediate_size = family == Family::mixtral ? 16 : 12;
  if (family == Family::mixtral) c.num_experts = 3;  // fewer than four ranks
  if (family == Family::qwen3_moe && !tied) c.shared_expert_intermediate_size = 8;
  c.router_aux_loss_coef = 0.1;
  c.router_z_loss_coef = 0.01;
  return c;
}

// The elements of a rank's shard, from those of the whole tensor.
template <class A>
std::vector<A> cut(const std::vector<A>& whole, const TensorSpec& spec, const TensorShard& shard) {
  std::vector<A> own;
  const bool by_columns = shard.cut == TensorShard::Cut::cols;
  for (std::int64_t i = 0; i < spec.rows; ++i)
    for (std::int64_t j = 0; j < spec.cols; ++j)
      if (const std::int64_t at = by_columns ? j : i; shard.begin <= at && at < shard.end)
        own.push_back(whole[static_cast<std::size_t>(i * spec.cols + j)]);
  return own;
}

// One rank's part, with the weights of a whole model.
template <class Exec, class T>
struct PartRig {
  using A = Acc<T>;
  const ModelRig<Exec, T>& whole;
  Case given;
  std::unique_ptr<Communicator> ranks = tensor_ranks<Exec>();
  TensorGroup<Exec> group;
  ModelPart part;
  Transformer<Exec, T> model;
  Arena<Exec, T> arena;
  Activations<Exec, T> slot;
  Weights<Exec, T> weights;
  Gradients<Exec, T> gradients;
  BlockHooks hooks;

  PartRig(const ModelRig<Exec, T>& from, const Case& c)
      : whole(from),
        given(c),
        group(*ranks),
        part(model_part(from.config, group.size(), group.rank(), c.sequence_parallel)),
        model(Exec(), part, from.range, c.batch, c.sequence, c.recompute, false, &group),
        arena(model.specs(), true),
        slot(model.make_slot()),
        weights(weights_of<Exec, T>(part.config, from.range, arena)),
        gradients(gradients_of<Exec, T>(part.config, from.range, arena)) {
    for (std::size_t i = 0; i < arena.size(); ++i) {
      const std::vector<A> own = cut(whole.master(i), whole.arena.specs()[i], shard(i));
      Kokkos::deep_copy(arena.master(i), Vector<const A, Host>(own.data(), own.size()));
    }
    arena.round_weights(Exec());
  }
  TensorShard shard(std::size_t i) const { return shard_of(i, group.rank()); }
  TensorShard shard_of(std::size_t i, int rank) const {
    return tensor_shard(whole.arena.specs()[i], whole.config, group.size(), rank);
  }
  double loss() {
    model.forward(weights, slot, whole.rows(), whole.first_key, hooks);
    model.loss_only(weights, slot, whole.targets);
    return model.loss_sum(slot);
  }
  double loss_and_backward(double scale, bool accumulate) {
    model.forward(weights, slot, whole.rows(), whole.first_key, hooks);
    model.loss_and_backward(weights, slot, whole.targets, scale, accumulate, gradients, hooks);
    return model.loss_sum(slot);
  }
  // The gradient of a tensor: where it is left in parts, summed over the ranks that hold the same elements, and
  // otherwise the same bits on all of them.
  std::vector<double> gradient(std::size_t i) {
    const auto own = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), arena.gradient(i));
    std::vector<double> mine(own.data(), own.data() + own.size());
    const bool partial =
        gradient_is_partial(whole.arena.specs()[i], whole.config, group.size(), given.sequence_parallel);
    std::size_t most = mine.size();
    for (int rank = 0; rank < group.size(); ++rank)
      most = std::max(most, cut(whole.master(i), whole.arena.specs()[i], shard_of(i, rank)).size());
    std::vector<double> padded = mine, all(most * static_cast<std::size_t>(group.size()));
    padded.resize(most);
    world().all_gather(padded.data(), most * sizeof(double), all.data());
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank() || shard_of(i, rank).begin != shard(i).begin) continue;
      const double* other = all.data() + static_cast<std::size_t>(rank) * most;
      for (std::size_t j = 0; j < mine.size(); ++j) {
        if (partial)
          mine[j] += other[j];
        else
          EXPECT_EQ(other[j], mine[j]) << whole.arena.specs()[i].name << " at " << j;
      }
    }
    return mine;
  }
};

// Sums of up to some hundred products, in another order, through two layers: a hundred roundings of the largest term.
template <class T>
constexpr double tolerance = 200 * std::numeric_limits<Acc<T>>::epsilon();

template <class A>
double largest_of(const std::vector<A>& values) {
  double largest = 0;
  for (const A value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

template <class A>
void expect_near(const std::vector<double>& got, const std::vector<A>& want, double bound, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t j = 0; j < want.size(); ++j) ASSERT_NEAR(got[j], want[j], bound) << what << " at " << j;
}

// Every rank compares every tensor, whatever it finds, since all ranks gather. Gradients that are nothing but rounding
// (of k's bias without rotary positions, which moves all scores of a row equally) are measured by those of the whole
// model.
template <class Exec, class T>
void expect_same_gradients(ModelRig<Exec, T>& whole, PartRig<Exec, T>& part) {
  double most = 0;
  for (std::size_t i = 0; i < whole.arena.size(); ++i) most = std::max(most, largest_of(whole.gradient(i)));
  for (std::size_t i = 0; i < whole.arena.size(); ++i) {
    const TensorSpec& spec = whole.arena.specs()[i];
    const auto want = cut(whole.gradient(i), spec, part.shard(i));
    const double bound = tolerance<T> * std::max(largest_of(whole.gradient(i)), 0.01 * most);
    expect_near(part.gradient(i), want, bound, spec.name);
  }
}

template <class Exec, class T>
void expect_same_model(const ModelConfig& config, const Case& c) {
  SCOPED_TRACE(fmt::format("{}, {} rows, {}{}{}{}", name(config.family), c.batch * c.sequence,
                           config.tie_word_embeddings ? "tied, " : "", c.sequence_parallel ? "split, " : "",
                           c.recompute ? "recompute, " : "", c.masked ? "masked" : ""));
  ModelRig<Exec, T> whole(config, c.batch, c.sequence, c.recompute);
  whole.disturb_vectors();
  whole.arena.round_weights(Exec());
  const int n = c.batch * c.sequence;
  whole.ignore({0, n / 2});
  if (c.masked) {
    std::vector<std::int32_t> first(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) first[static_cast<std::size_t>(r)] = r % c.sequence >= 3 ? 3 : 0;
    whole.mask(first);
  }
  PartRig<Exec, T> part(whole, c);
  EXPECT_EQ(part.slot.bytes(),
            slot_bytes(part.part, whole.range, c.batch, c.sequence, {sizeof(T), sizeof(Acc<T>)}, c.recompute));
  const double want = whole.loss();
  EXPECT_NEAR(part.loss(), want, tolerance<T> * want);
  const double scale = 1.0 / n;
  for (const bool accumulate : {false, true}) {
    whole.loss_and_backward(scale, accumulate);
    double got = part.loss_and_backward(scale, accumulate), other = got;
    EXPECT_NEAR(got, want, tolerance<T> * want);
    world().broadcast(&other, sizeof other, 0);
    EXPECT_EQ(got, other);  // the same bits on every rank
    expect_same_gradients(whole, part);
  }
}

constexpr Family families[] = {Family::llama, Family::olmo2, Family::qwen3, Family::gpt};
constexpr Family mixtures[] = {Family::qwen3_moe, Family::mixtral};

// Ranks: TensorModel 2 4
template <class Space>
class TensorModel : public testing::Test {};
TYPED_TEST_SUITE(TensorModel, reference::RunSpaces, reference::SpaceNames);

TYPED_TEST(TensorModel, IsTheWholeModelInDouble) {
  for (const Family family : families)
    for (const bool tied : {false, true})
      for (const bool split : {true, false})
        for (const bool recompute : {false, true})
          expect_same_model<TypeParam, double>(shared_model(family, tied),
                                               {.sequence_parallel = split, .recompute = recompute, .masked = tied});
}

// The switches of gpt: the same sums over rows, heads and the vocabulary, of tensors that other models do not have.
TYPED_TEST(TensorModel, IsTheWholeModelWithEverySwitch) {
  for (const bool bare : {false, true}) {
    ModelConfig config = contest_model();
    config.intermediate_size = 16;
    config.tie_word_embeddings = config.qk_norm_gain = bare;
    config.norm_gain = !bare;
    for (const bool split : {true, false})
      expect_same_model<TypeParam, double>(config, {.sequence_parallel = split, .recompute = bare, .masked = !bare});
  }
}

// Parts of all experts, and of a shared one: the router has whole sums, on every rank the same.
TYPED_TEST(TensorModel, IsTheWholeModelWithExperts) {
  for (const Family family : mixtures)
    for (const bool tied : {false, true})
      for (const bool split : {true, false}) {
        const ModelConfig config = shared_model(family, tied);
        expect_same_model<TypeParam, double>(config, {.sequence_parallel = split, .recompute = tied, .masked = tied});
        if (!tied) expect_same_model<TypeParam, float>(config, {.sequence_parallel = split});
      }
  expect_same_model<TypeParam, double>(shared_model(Family::mixtral, false), {.batch = 1, .sequence = 1});
}

// An MLP of 17 columns, of which the first rank has one more than others.
TYPED_TEST(TensorModel, IsTheWholeModelWithUnevenParts) {
  for (const Family family : families)
    for (const bool split : {true, false}) {
      ModelConfig config = shared_model(family, false);
      config.intermediate_size = 17;
      expect_same_model<TypeParam, double>(config, {.sequence_parallel = split, .recompute = split, .masked = !split});
      expect_same_model<TypeParam, float>(config, {.sequence_parallel = split});
    }
}

TYPED_TEST(TensorModel, IsTheWholeModelInSinglePrecision) {
  for (const Family family : families)
    for (const bool split : {true, false})
      expect_same_model<TypeParam, float>(shared_model(family, false), {.sequence_parallel = split, .masked = true});
}

TYPED_TEST(TensorModel, TakesFewerRowsThanRanks) {
  for (const Family family : families)
    for (const int sequence : {1, 3})
      expect_same_model<TypeParam, double>(shared_model(family, false), {.batch = 1, .sequence = sequence});
}

// Slices of the logits must be the same on ranks whose parts of the vocabulary are not.
TYPED_TEST(TensorModel, SlicesLogitsAlike) {
  ModelConfig config = shared_model(Family::llama, false);
  config.hidden_size = 8;
  config.vocab_size = 100001;
  config.num_hidden_layers = 1;
  ModelRig<TypeParam, double> whole(config, 2, 200);
  PartRig<TypeParam, double> part(whole, {.batch = 2, .sequence = 200});
  ASSERT_LT(logit_rows(part.part, 400, sizeof(double)), 400);
  const double want = whole.loss_and_backward(1.0 / 400);
  EXPECT_NEAR(part.loss_and_backward(1.0 / 400, false), want, tolerance<double> * want);
  expect_same_gradients(whole, part);
}

// Wide rows: scratch that is not planned for does not fit into what the kernels leave of theirs.
TYPED_TEST(TensorModel, FindsItsScratch) {
  std::vector<Family> all(std::begin(families), std::end(families));
  all.insert(all.end(), std::begin(mixtures), std::end(mixtures));
  for (const Family family : all)
    for (const bool split : {true, false})
      for (const bool recompute : {true, false}) {
        ModelConfig config = shared_model(family, false);
        config.hidden_size = 2048;
        config.num_hidden_layers = 1;
        config.initializer_range = 0.05;
        ModelRig<TypeParam, float> whole(config, 4, 16, recompute);
        PartRig<TypeParam, float> part(whole, {4, 16, split, recompute});
        const double want = whole.loss_and_backward(1.0 / 64);
        EXPECT_NEAR(part.loss_and_backward(1.0 / 64, false), want, tolerance<float> * want);
      }
}

TYPED_TEST(TensorModel, Bfloat16FollowsTheWholeModel) {
  std::vector<Family> all(std::begin(families), std::end(families));
  all.insert(all.end(), std::begin(mixtures), std::end(mixtures));
  for (const Family family : all) {
    ModelConfig config = shared_model(family, false);
    config.initializer_range = 0.05;
    ModelRig<TypeParam, bf16> whole(config, 3, 7);
    PartRig<TypeParam, bf16> part(whole, {});
    EXPECT_NEAR(part.loss() / 21, whole.loss() / 21, 0.02) << name(family);
  }
}

// One logit that is not finite, on one rank: no rank has a finite loss.
TYPED_TEST(TensorModel, SharesNonFiniteLosses) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ModelRig<TypeParam, double> whole(shared_model(Family::llama, false));
    const std::size_t head = whole.index("lm_head.weight");
    auto values = whole.master(head);
    values.back() = bad;
    whole.set_master(head, values);
    PartRig<TypeParam, double> part(whole, {.batch = 2, .sequence = 7});
    EXPECT_FALSE(std::isfinite(part.loss()));
  }
}

}  // namespace
}  // namespace sestina

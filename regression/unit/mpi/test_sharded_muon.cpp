// Muon, NorMuon and AdaMuon with matrices that stay in shards (tp_update = "distributed") against whole matrices at
// their homes.
#include "core/optimizer/methods/sharded_muon.hpp"

#include <gtest/gtest.h>

#include <map>

#include "kernels/base/random.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using TpUpdate = ParallelOptions::TpUpdate;

struct Grid {
  const char* name;
  TrainingCase run;
};

// Heads of all ranks their own, shared by some, and held by all of them; learned positions as a matrix that is not cut;
// shards owned once or by every data-parallel rank. Of NorMuon, matrices that are cut along the lines that have means,
// and across.
std::vector<Grid> grids(const std::string& kind = "muon") {
  std::vector<Grid> all;
  for (const int tp : tensor_sizes()) {
    if (tp == 1) continue;
    all.push_back({"llama", grid_case(kind, tp)});
    all.push_back({"replicated", grid_case(kind, tp)});
    all.back().run.options.parallel.partition = ParallelOptions::Partition::replicated;
    all.push_back({"one head", grid_case(kind, tp, Family::qwen3)});
    if (tp == 6) {
      all.push_back({"heads of three", grid_case(kind, tp, Family::qwen3)});
      all.back().run.options.model.num_key_value_heads = 2;
    }
    all.push_back({"positions", grid_case(kind, tp, Family::gpt)});
    all.back().run.options.optimizer.group.push_back({.match = "*embed_positions*", .kind = kind});
  }
  return all;
}

// One update, and thirty of them: the differences of updates, losses and weights that are allowed.
struct ShardedKind {
  const char* kind;
  double update, loss, weights;
};
constexpr ShardedKind sharded_kinds[] = {{"muon", 200 * 0x1p-24, 4e-6, 6e-5},
                                         {"normuon", 200 * 0x1p-24, 4e-6, 6e-5},
                                         {"adamuon", 4 * 0x1p-12, 4e-6, 6e-5}};

TrainingCase distributed(TrainingCase run) {
  run.options.parallel.tp_update = TpUpdate::distributed;
  return run;
}

std::string name_of(const Grid& grid) {
  return fmt::format("{} {}, {} x {}", grid.run.options.optimizer.kind, grid.name, grid.run.options.parallel.dp,
                     grid.run.options.parallel.tp);
}

// |a - b| / |b - start|, all weights.
double update_difference(const Trained& a, const Trained& b, const Trained& start) {
  double difference = 0, moved = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    difference += std::pow(double(a.weights[i]) - double(b.weights[i]), 2);
    moved += std::pow(double(b.weights[i]) - double(start.weights[i]), 2);
  }
  return std::sqrt(difference / moved);
}

// Ranks: ShardedMuon 2 4
template <class Space>
class ShardedMuon : public testing::Test {};
TYPED_TEST_SUITE(ShardedMuon, reference::RunSpaces, reference::SpaceNames);

// The gradients are the same bits. An update is seen as a difference of weights, which are some 25 times as large as it
// and rounded: 25 eps at least. Newton-Schulz adds about as much; four times their sum is allowed. AdaMuon's first update
// divides an element o by its own size: what is rounded by delta changes by delta / |o|, at most by 2, and the root mean
// square of that over elements spread evenly around zero is about sqrt(delta), with delta = 16 eps.
TYPED_TEST(ShardedMuon, OneUpdateIsThatOfWholeMatrices) {
  for (const ShardedKind& allowed : sharded_kinds)
    for (const Grid& grid : grids(allowed.kind)) {
      const Trained home = train_together<float, TypeParam>(grid.run, 1),
                    shards = train_together<float, TypeParam>(distributed(grid.run), 1),
                    start = train_together<float, TypeParam>(grid.run, 0);
      EXPECT_EQ(home.loss, shards.loss) << name_of(grid);
      EXPECT_EQ(home.norm, shards.norm) << name_of(grid);
      EXPECT_LT(update_difference(shards, home, start), allowed.update) << name_of(grid);
      EXPECT_NE(shards.weights, home.weights) << name_of(grid);
    }
}

// What later updates make of that; ten times what was seen.
TYPED_TEST(ShardedMuon, ThirtyUpdatesStayTogether) {
  for (const ShardedKind& allowed : sharded_kinds)
    for (const Grid& grid : grids(allowed.kind)) {
      if (allowed.kind != std::string("muon") && grid.name != std::string("llama")) continue;
      const Trained home = train_together<float, TypeParam>(grid.run, 30),
                    shards = train_together<float, TypeParam>(distributed(grid.run), 30);
      EXPECT_LT(shards.loss.back(), 0.9 * shards.loss.front()) << name_of(grid);
      EXPECT_LT(largest_difference(shards, home), allowed.loss) << name_of(grid);
      EXPECT_LT(weight_difference(shards, home), allowed.weights) << name_of(grid);
    }
}

// Rounding to 8 bits in other places: a few percent of each update, of random sign.
TYPED_TEST(ShardedMuon, TenUpdatesInBf16) {
  for (const Grid& grid : grids()) {
    const Trained home = train_together<bf16, TypeParam>(grid.run, 10),
                  shards = train_together<bf16, TypeParam>(distributed(grid.run), 10);
    EXPECT_LT(largest_difference(shards, home), 0.01) << name_of(grid);
    EXPECT_LT(weight_difference(shards, home), 0.05) << name_of(grid);
  }
}

template <class Exec, class T>
void expect_one_value_each(TypedExecutor<Exec, T>& run, const std::string& what) {
  const Arena<Exec, T>& arena = run.stage().arena();
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& tensor = arena.layout().tensors[i];
    if (tensor.local.is_vector()) continue;
    std::vector<double> most(static_cast<std::size_t>(tensor.whole.elements()), -1e300), least = most;
    place_weights<Exec, T>(arena, i, most);
    std::transform(most.begin(), most.end(), least.begin(), [](double x) { return x == -1e300 ? x : -x; });
    world().all_reduce(most.data(), most.size(), Reduction::max);
    world().all_reduce(least.data(), least.size(), Reduction::max);
    for (double& value : least) value = -value;
    EXPECT_EQ(most, least) << tensor.whole.name << ", " << what;
  }
}

TYPED_TEST(ShardedMuon, RanksWithTheSameShardHaveTheSameBits) {
  for (const ShardedKind& sharded : sharded_kinds)
    for (const Grid& grid : grids(sharded.kind)) {
      const TrainingCase run = distributed(grid.run);
      TypedExecutor<TypeParam, float> single(TypeParam(), make_plan({run.options, world().size()}), world());
      TypedExecutor<TypeParam, bf16> rounded(TypeParam(), make_plan({run.options, world().size()}), world());
      single.initialise(5);
      rounded.initialise(5);
      Trained unused;
      train_steps(single, run.options, 0, 4, unused);
      train_steps(rounded, run.options, 0, 4, unused);
      expect_one_value_each(single, name_of(grid));
      expect_one_value_each(rounded, name_of(grid));
    }
}

// Values of the fields that are saved, put together over all ranks, by path.
template <class Exec>
std::map<std::string, std::vector<double>> whole_fields(const std::vector<std::string>& paths,
                                                        const std::vector<StateField>& fields) {
  std::map<std::string, std::vector<double>> all;
  for (const std::string& path : paths) {
    double size = 0;
    const StateField* mine = nullptr;
    for (const StateField& field : fields)
      if (field.path == path && field.saved) mine = &field;
    if (mine != nullptr) size = double(mine->shape[0] * (mine->shape.size() > 1 ? mine->shape[1] : 1));
    world().all_reduce(&size, 1, Reduction::max);
    std::vector<double> values(static_cast<std::size_t>(size), 0), count = values;
    if (mine != nullptr) {
      const std::vector<double> own = host_values<Exec>(static_cast<const float*>(mine->data),
                                                        (mine->row_end - mine->row_begin) * mine->row_elements());
      const std::int64_t width = mine->row_elements(), cols = mine->shape.size() > 1 ? mine->shape[1] : 1;
      for (std::int64_t r = mine->row_begin; r < mine->row_end; ++r)
        for (std::int64_t c = 0; c < width; ++c) {
          const auto to = static_cast<std::size_t>(r * cols + mine->col_begin + c);
          values[to] = own[static_cast<std::size_t>((r - mine->row_begin) * width + c)];
          count[to] = 1;
        }
    }
    world().all_reduce(values.data(), values.size(), Reduction::sum);
    world().all_reduce(count.data(), count.size(), Reduction::sum);
    EXPECT_EQ(count, std::vector<double>(count.size(), 1)) << path;  // somebody saves each element, and nobody else
    all[path] = std::move(values);
  }
  return all;
}

std::vector<std::string> state_paths(const Options& options) {
  std::vector<std::string> paths;
  for (const TensorSpec& spec : tensor_specs(options.model)) {
    if (!is_matrix_optimized(spec, options.optimizer)) continue;
    for (const MatrixPart& part : matrix_parts(spec, options.optimizer))
      paths.push_back("/optimizer/" + part.name + "/momentum");
  }
  return paths;
}

// Second moments are there once, with the values of whole matrices but for rounding: squares of a direction that has
// some 1e-5 of rounding.
TYPED_TEST(ShardedMuon, SecondMomentsAreThoseOfWholeMatrices) {
  for (const char* kind : {"normuon", "adamuon"})
    for (const Grid& grid : grids(kind)) {
      std::vector<std::string> paths;
      for (const TensorSpec& spec : tensor_specs(grid.run.options.model))
        if (is_matrix_optimized(spec, grid.run.options.optimizer))
          paths.push_back("/optimizer/" + spec.name + "/second_moment");
      std::map<std::string, std::vector<double>> states[2];
      for (const bool sharded : {false, true}) {
        const Options options = sharded ? distributed(grid.run).options : grid.run.options;
        TypedExecutor<TypeParam, float> session(TypeParam(), make_plan({options, world().size()}), world());
        session.initialise(5);
        Trained unused;
        train_steps(session, options, 0, 1, unused);
        states[sharded] = whole_fields<TypeParam>(paths, session.optimizer_fields());
      }
      for (const std::string& path : paths) {
        const std::vector<double>&want = states[0].at(path), &got = states[1].at(path);
        ASSERT_EQ(got.size(), want.size()) << path;
        const double most = *std::max_element(want.begin(), want.end());
        EXPECT_GT(most, 0) << path;
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4 * most) << path << " " << i;
      }
    }
}

// The momentum after one update is a multiple of the gradient: the same bits, under the same names.
TYPED_TEST(ShardedMuon, StateIsThatOfWholeMatrices) {
  for (const Grid& grid : grids())
    for (const bool per_head : {false, true}) {
      TrainingCase run = grid.run;
      run.options.optimizer.per_head = per_head;
      const std::vector<std::string> paths = state_paths(run.options);
      std::map<std::string, std::vector<double>> states[2];
      for (const bool sharded : {false, true}) {
        const Options options = sharded ? distributed(run).options : run.options;
        TypedExecutor<TypeParam, float> session(TypeParam(), make_plan({options, world().size()}), world());
        session.initialise(5);
        Trained unused;
        train_steps(session, options, 0, 1, unused);
        states[sharded] = whole_fields<TypeParam>(paths, session.optimizer_fields());
      }
      EXPECT_EQ(states[0], states[1]) << name_of(grid) << ", per head " << per_head;
    }
}

// Heads are whole on their rank: the same matrices as at home, bit for bit.
TYPED_TEST(ShardedMuon, HeadsByThemselvesAreOrdinaryMatrices) {
  TrainingCase run = grid_case("muon", tensor_sizes().back());
  run.options.optimizer.per_head = true;
  const Trained home = train_together<float, TypeParam>(run, 1),
                shards = train_together<float, TypeParam>(distributed(run), 1);
  std::size_t at = 0, seen = 0;
  for (const TensorSpec& spec : tensor_specs(run.options.model)) {
    const auto n = static_cast<std::size_t>(spec.elements());
    const auto slab = [&](const Trained& trained) {
      return std::vector<float>(trained.weights.begin() + static_cast<std::ptrdiff_t>(at),
                                trained.weights.begin() + static_cast<std::ptrdiff_t>(at + n));
    };
    if (spec.heads > 1) {
      EXPECT_EQ(slab(home), slab(shards)) << spec.name;
      ++seen;
    }
    at += n;
  }
  EXPECT_EQ(seen, 6u);
}

// NorMuon and AdaMuon sum their moments in addition.
TYPED_TEST(ShardedMuon, SumsOnceForTheNormAndOnceForEachStep) {
  std::vector<Grid> all = grids();
  for (const char* kind : {"normuon", "adamuon"})
    for (Grid& grid : grids(kind)) all.push_back(std::move(grid));
  for (const Grid& grid : all) {
    TrainingCase run = distributed(grid.run);
    run.options.optimizer.matrix->set("ns_steps", 3);
    TypedExecutor<TypeParam, float> session(TypeParam(), make_plan({run.options, world().size()}), world());
    session.initialise(5);
    std::int64_t matrices = 0;
    for (const auto& tensor : session.tensors()) matrices += tensor.sharded ? 1 : 0;
    Trained unused;
    train_steps(session, run.options, 0, 1, unused);
    session.take_group_count();
    session.run().update(2, 1.0, {});
    session.finish_gather();
    const std::int64_t sums = session.take_group_count().reductions;
    EXPECT_EQ(sums, (run.options.optimizer.kind == "muon" ? 4 : 5) * matrices) << name_of(grid);
    EXPECT_EQ(sums, session.exchanges_per_step().sums) << name_of(grid);
    double most = double(sums);
    world().all_reduce(&most, 1, Reduction::max);
    std::int64_t planned = 0;
    for (const Collective& collective : collectives(make_plan(run.options)))
      if (collective.what == "products") planned = collective.count;
    EXPECT_EQ(most, double(planned)) << name_of(grid);
  }
}

// Rows or columns of one matrix, dealt out unevenly.
template <class Exec>
OwnedTensor<Exec, float> shard_of(const TensorSpec& spec, CutSide cut, Vector<float, Exec> gradient,
                                  Vector<float, Exec> master, std::int64_t begin, std::int64_t end) {
  OwnedTensor<Exec, float> tensor{spec, gradient, master, {}};
  tensor.row_end = cut == CutSide::rows ? end : spec.rows;
  (cut == CutSide::rows ? tensor.row_begin : tensor.col_begin) = begin;
  if (cut == CutSide::cols) tensor.col_end = end;
  tensor.sharded = true;
  return tensor;
}

// A schedule of the momentum is followed: the bits are those of a kind that has that momentum.
TYPED_TEST(ShardedMuon, FollowsAMomentumSchedule) {
  const auto together = tensor_ranks<TypeParam>();
  TensorGroup<TypeParam> group(*together);
  const auto moved = [&](double momentum, bool scheduled) {
    OptimizerOptions options = training_case("muon").options.optimizer;
    if (scheduled)
      options.schedule.momentum = {{1, momentum}, {2, momentum}};
    else
      options.matrix->set("momentum", momentum);
    TensorSpec spec;
    spec.name = "model.layers.0.mlp.down_proj.weight";
    spec.rows = 4 * world().size();
    spec.cols = 6;
    const std::size_t n = 24;
    const Kokkos::View<float*, typename TypeParam::memory_space> gradient("g", n), master("w", n);
    const std::int64_t begin = 4 * world().rank();
    sestina::ShardedMuon<TypeParam, float> muon(
        TypeParam(), {shard_of<TypeParam>(spec, CutSide::rows, gradient, master, begin, begin + 4)}, options, true,
        group);
    for (std::int64_t t = 1; t <= 2; ++t) {
      const auto host = Kokkos::create_mirror_view(gradient);
      for (std::size_t i = 0; i < n; ++i) host(i) = static_cast<float>(normal(static_cast<std::uint64_t>(t), i));
      Kokkos::deep_copy(gradient, host);
      muon.step(TypeParam(), t, 1, 1);
    }
    return host_values<TypeParam>(master.data(), n);
  };
  EXPECT_EQ(moved(0.5, true), moved(0.5, false));
  EXPECT_NE(moved(0.5, true), moved(0.95, true));
}

// Without a gradient there is no direction: the weights decay, and nothing is divided by zero.
TYPED_TEST(ShardedMuon, ZeroGradientsOnlyDecay) {
  const auto together = tensor_ranks<TypeParam>();
  TensorGroup<TypeParam> group(*together);
  const int ranks = world().size(), rank = world().rank();
  for (const auto& [kind, cut] : {std::pair("muon", CutSide::rows), std::pair("muon", CutSide::cols),
                                  std::pair("normuon", CutSide::rows), std::pair("normuon", CutSide::cols),
                                  std::pair("adamuon", CutSide::rows), std::pair("adamuon", CutSide::cols)}) {
    OptimizerOptions options = training_case(kind).options.optimizer;
    options.weight_decay = 0.1;
    TensorSpec spec;
    spec.name = "model.layers.0.mlp.down_proj.weight";
    spec.rows = 21;
    spec.cols = 21;
    const std::int64_t begin = spec.rows * rank * (rank + 1) / (ranks * (ranks + 1)),
                       end = spec.rows * (rank + 1) * (rank + 2) / (ranks * (ranks + 1));
    const auto n = static_cast<std::size_t>((end - begin) * 21);
    const Kokkos::View<float*, typename TypeParam::memory_space> gradient("g", n), master("w", n);
    Kokkos::deep_copy(master, 2.0f);
    sestina::ShardedMuon<TypeParam, float> muon(
        TypeParam(), {shard_of<TypeParam>(spec, cut, gradient, master, begin, end)}, options, true, group);
    muon.step(TypeParam(), 1, 0.5, 1.0);
    const double want = static_cast<float>(1 - 0.5 * options.lr * 0.1) * 2.0f;
    EXPECT_EQ(host_values<TypeParam>(master.data(), 21 * (end - begin)),
              std::vector<double>(21 * static_cast<std::size_t>(end - begin), want));
    std::size_t moments = kind == std::string("adamuon") ? n : 0;
    if (kind == std::string("normuon")) moments = cut == CutSide::rows ? n / 21 : 21;  // rows, as it is square
    EXPECT_EQ(muon.state_bytes(), 4 * (n + moments)) << kind;
  }
}

}  // namespace
}  // namespace sestina

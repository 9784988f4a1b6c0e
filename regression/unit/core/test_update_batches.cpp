// Matrices that are updated together, as on a device: each ends where its own update would have taken it, whatever else
// is in its batch; and which matrices are in one.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/base/update_batches.hpp"
#include "matrix_rig.hpp"

namespace sestina::reference {
namespace {

struct BatchShape {
  std::size_t rows, cols;
};
// Three wide forms, of which one is that of matrices and of transposes of others; one is of a single matrix, and one of
// several chunks of sums.
const std::vector<BatchShape> mixed_shapes = {{12, 20}, {20, 12}, {16, 16}, {70, 90},
                                              {12, 20}, {90, 70}, {16, 16}, {5, 1}};

MatrixOptions batch_options(const std::string& kind, const KeyValues& numbers = {}, const Words& words = {}) {
  MatrixOptions options = default_options(*find_matrix_kind(kind));
  for (const auto& [key, value] : numbers) options.set(key, value);
  for (const auto& [key, value] : words) options.set(key, value);
  return options;
}

// Matrices with optimizers of their own and rates that differ, and their numbers on a space.
template <class Space>
struct BatchRig {
  BatchRig(const MatrixOptions& options, const std::vector<BatchShape>& shapes, bool in_bf16) : options(options) {
    std::size_t alone = 0, together = 0;
    for (const BatchShape& shape : shapes) {
      const std::size_t rows = shape.rows, cols = shape.cols;
      const auto i = static_cast<unsigned>(gradients.size());
      const std::string name = "w" + std::to_string(i);
      optimizers.push_back(make_matrix_optimizer<Space>(Space(), options, {"/optimizer/" + name, rows, cols, i}));
      gradients.emplace_back(rows, cols);
      masters.emplace_back(rounded<float>(random_array(rows, cols, 77 + i)));
      weights.emplace_back(rows, cols);
      OwnedMatrix<Space> matrix{name, gradients.back().read(), masters.back().matrix(), {}};
      if (in_bf16) matrix.weight = weights.back().matrix();
      items.push_back({matrix, {.lr = 0.5 + 0.125 * i, .weight_decay = 0.1 * i}, optimizers.back().get()});
      alone = std::max(alone,
                       bytes_taken<Space>([&](auto& counter) { declare_update<Space>(counter, options, rows, cols); }));
      together += scratch_in_batch<Space>(options, in_bf16, rows, cols, false);
    }
    stream = std::make_unique<Stream<Space>>(
        Stream<Space>{Space(), Gemm<Space>(Space(), true), Workspace<Space>(std::max(alone, together))});
    stream->nonfinite = flag.data();
  }

  void set_gradients(unsigned t) {
    for (std::size_t i = 0; i < items.size(); ++i)
      set_values(gradients[i].matrix(),
                 gradient_at(items[i].matrix.rows(), items[i].matrix.cols(), 100 * t + unsigned(i)));
  }
  // lr and weight_decay are factors of each one's own.
  void step_one_by_one(const UpdateNumbers& shared) {
    for (const BatchItem<Space>& item : items) {
      UpdateNumbers numbers = shared;
      numbers.lr *= item.rates.lr;
      numbers.weight_decay *= item.rates.weight_decay;
      item.optimizer->step(*stream, numbers, item.matrix);
    }
  }
  void step_together(const UpdateNumbers& shared) {
    for (const auto& batch : range.batches) batch->step(*stream, shared);
  }
  Array field(std::size_t i, const char* name) { return values_of(optimizers[i]->state().read(name)); }
  double raised() { return values_of(flag).values[0]; }

  MatrixOptions options;
  std::vector<std::unique_ptr<MatrixOptimizer<Space>>> optimizers;
  std::vector<Field<float, Space>> gradients, masters;
  std::vector<Field<bf16, Space>> weights;
  std::vector<BatchItem<Space>> items;
  BatchedRange<Space> range;
  std::unique_ptr<Stream<Space>> stream;
  Kokkos::View<double*, typename Space::memory_space> flag{"flag", 1};
};

Array movement(const Array& a, const Array& b) { return blend(1, a, -1, b); }

// Four updates, one of them with another momentum. Products of the same numbers in another order, and polynomials that
// are rounded once more: five iterations amplify both by up to their largest slope, 3.4 each, of which little is seen.
// The momentum of both is one pass over the same numbers.
template <class Space>
void expect_same_updates(const MatrixOptions& options, bool in_bf16, std::size_t most) {
  BatchRig<Space> together(options, mixed_shapes, in_bf16), alone(options, mixed_shapes, in_bf16);
  together.range = batch_range<Space>(options, together.items, 0, mixed_shapes.size(), most);
  ASSERT_TRUE(together.range.alone.empty());
  const double rounding = in_bf16 ? 1.0 / 256 : std::numeric_limits<float>::epsilon();
  for (unsigned t = 1; t <= 4; ++t) {
    const UpdateNumbers numbers{t, 0.125, 0.5, 0.5, t == 3 ? std::optional(0.75) : std::nullopt};
    for (BatchRig<Space>* run : {&together, &alone}) run->set_gradients(t);
    together.step_together(numbers);
    alone.step_one_by_one(numbers);
    for (std::size_t i = 0; i < mixed_shapes.size(); ++i) {
      const std::string what = options.kind + ", update " + std::to_string(t) + ", matrix " + std::to_string(i);
      const Array start = rounded<float>(random_array(mixed_shapes[i].rows, mixed_shapes[i].cols, 77 + unsigned(i)));
      const double tolerance = (in_bf16 ? 24 : 32 * double(mixed_shapes[i].rows + mixed_shapes[i].cols)) * rounding;
      expect_close(movement(together.masters[i].get(), start), movement(alone.masters[i].get(), start), tolerance,
                   what.c_str());
      expect_same(together.field(i, "momentum"), alone.field(i, "momentum"), what.c_str());
      if (options.kind != "muon")
        expect_close(together.field(i, "second_moment"), alone.field(i, "second_moment"), tolerance, what.c_str());
      if (in_bf16) expect_same(together.weights[i].get(), rounded<bf16>(together.masters[i].get()), what.c_str());
    }
  }
  EXPECT_EQ(together.raised(), 0);
  EXPECT_LE(together.stream->workspace.peak(), together.stream->workspace.capacity());
}

template <class Space>
class UpdateBatches : public testing::Test {};
TYPED_TEST_SUITE(UpdateBatches, StreamSpaces, SpaceNames);

TYPED_TEST(UpdateBatches, GiveWhatSingleUpdatesGive) {
  for (const bool in_bf16 : {false, true}) {
    for (const char* kind : {"muon", "normuon"})
      expect_same_updates<TypeParam>(batch_options(kind), in_bf16, most_batch_scratch);
    // Without an eps of the size of a direction AdaMuon moves by the signs of what are errors of rounding.
    expect_same_updates<TypeParam>(batch_options("adamuon", {{"eps", 0.25}}), in_bf16, most_batch_scratch);
  }
}

// As many batches as there are matrices of half of the largest one's memory; cubic steps; the momentum as it is; a
// scale of the shape; and eps in the norm.
TYPED_TEST(UpdateBatches, GiveItInOtherFormsToo) {
  const auto larger = scratch_in_batch<TypeParam>(batch_options("muon"), false, 70, 90, false);
  expect_same_updates<TypeParam>(batch_options("muon"), false, larger);
  expect_same_updates<TypeParam>(batch_options("muon", {{"nesterov", 0}}, {{"ns_set", "cubic5"}}), false, larger);
  expect_same_updates<TypeParam>(
      batch_options("muon", {{"ns_eps", 0.25}}, {{"scale", "original"}, {"ns_normalize", "add"}}), false, larger);
  for (const bool in_bf16 : {false, true})
    for (const char* set : {"simple", "cubic5"})
      expect_same_updates<TypeParam>(batch_options("muon", {}, {{"ns_norm", "gram"}, {"ns_set", set}}), in_bf16,
                                     most_batch_scratch);
}

// Bases, factors and second moments follow gradients alone: they have the bits of single updates on a host.
TYPED_TEST(UpdateBatches, MakeRotatedDirectionsOrthogonalAsSingleUpdatesDo) {
  for (const bool in_bf16 : {false, true}) {
    MatrixOptions options = batch_options("soap-muon");
    expect_same_updates<TypeParam>(options, in_bf16, most_batch_scratch);
    options = batch_options("soap-muon", {{"ns_eps", 0.25}}, {{"ns_norm", "frobenius"}, {"matmul_precision", "tf32"}});
    options.refresh_every = 3;
    expect_same_updates<TypeParam>(options, in_bf16, scratch_in_batch<TypeParam>(options, in_bf16, 70, 90, false));
  }
}

TYPED_TEST(UpdateBatches, TellOfNumbersThatAreNot) {
  BatchRig<TypeParam> run(batch_options("muon"), mixed_shapes, false);
  run.range = batch_range<TypeParam>(run.options, run.items, 0, mixed_shapes.size());
  run.set_gradients(1);
  Array bad = run.gradients[1].get();
  bad.values[3] = std::numeric_limits<double>::quiet_NaN();
  set_values(run.gradients[1].matrix(), bad);
  run.step_together({1, 0.125, 0, 1});
  EXPECT_EQ(run.raised(), 1);
  for (std::size_t i = 0; i < mixed_shapes.size(); ++i) {
    const std::vector<double> values = run.masters[i].get().values;
    EXPECT_EQ(std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }), i != 1) << i;
  }
}

// Of methods with factors, seven updates of which some refresh, and one with a gradient of zeros for a matrix, which
// starts later and leaves its batch out of step until all of them begin again. A host computes the bits of single
// updates, unless these round the direction of a block by itself (tolerance > 0).
template <class Space>
void expect_same_rotations(const MatrixOptions& options, bool in_bf16, bool late, std::size_t most,
                           double tolerance = 0) {
  BatchRig<Space> together(options, mixed_shapes, in_bf16), alone(options, mixed_shapes, in_bf16);
  together.range = batch_range<Space>(options, together.items, 0, mixed_shapes.size(), most);
  ASSERT_TRUE(together.range.alone.empty());
  const auto compare = [tolerance](const Array& a, const Array& b, const std::string& what) {
    if (is_host<Space> && tolerance == 0)
      expect_same(a, b, what.c_str());
    else
      expect_close(a, b, std::max(tolerance, is_host<Space> ? 0 : 1e-3), what.c_str());
  };
  for (unsigned t = 1; t <= 7; ++t) {
    const UpdateNumbers numbers{t, 0.125, 0.5, 0.5, std::nullopt};
    for (BatchRig<Space>* run : {&together, &alone}) {
      run->stream->refresh.policy.stagger = true;
      run->set_gradients(t);
      if (late && t == 1) set_values(run->gradients[2].matrix(), Array(mixed_shapes[2].rows, mixed_shapes[2].cols));
    }
    together.step_together(numbers);
    alone.step_one_by_one(numbers);
    for (std::size_t i = 0; i < mixed_shapes.size(); ++i) {
      const std::string what = options.kind + ", update " + std::to_string(t) + ", matrix " + std::to_string(i);
      compare(together.masters[i].get(), alone.masters[i].get(), what);
      for (const FieldSize& field : fields_of(options, mixed_shapes[i].rows, mixed_shapes[i].cols))
        if (field.dtype == DType::f32)
          compare(together.field(i, field.name.c_str()), alone.field(i, field.name.c_str()), what + ", " + field.name);
      if (in_bf16) expect_same(together.weights[i].get(), rounded<bf16>(together.masters[i].get()), what.c_str());
    }
  }
  EXPECT_EQ(together.raised(), 0);
  EXPECT_LE(together.stream->workspace.peak(), together.stream->workspace.capacity());
}

MatrixOptions soap_options(const KeyValues& numbers = {}, const Words& words = {}) {
  MatrixOptions options = batch_options("soap", numbers, words);
  options.refresh_every = 3;
  return options;
}

TYPED_TEST(UpdateBatches, RotateAsSingleUpdatesDo) {
  for (const bool in_bf16 : {false, true})
    expect_same_rotations<TypeParam>(soap_options(), in_bf16, false, most_batch_scratch);
  expect_same_rotations<TypeParam>(soap_options(), false, true, most_batch_scratch);
  const auto larger = scratch_in_batch<TypeParam>(soap_options(), false, 70, 90, false);
  expect_same_rotations<TypeParam>(soap_options(), false, false, larger);
}

TYPED_TEST(UpdateBatches, RotateInOtherFormsToo) {
  const auto same = [](const MatrixOptions& options) {
    expect_same_rotations<TypeParam>(options, false, false, most_batch_scratch);
  };
  same(soap_options({}, {{"sides", "smaller"}}));
  same(soap_options({{"bias_correction", 0}}, {{"factor_update", "before"}, {"decay_order", "before"}}));
  same(soap_options({}, {{"first_step", "use"}, {"basis_refresh", "eigh"}, {"matmul_precision", "tf32"}}));
  MatrixOptions put_off = soap_options();
  put_off.refresh_staleness = 2;
  same(put_off);
}

TYPED_TEST(UpdateBatches, RotateTheBasesOfBasisRotationToo) {
  const auto same = [](const Words& words) {
    MatrixOptions options = batch_options("basis-rotation", {}, words);
    options.refresh_every = 3;
    expect_same_rotations<TypeParam>(options, false, false, most_batch_scratch);
  };
  same({});
  same({{"source", "1st"}});
  same({{"geometry", "unilateral"}});
  same({{"geometry", "unilateral"}, {"source", "1st"}, {"dialect", "release"}});
}

// Sums of squares whose terms compilers may order as they like give each eigenvalue a rounding more, which seven
// updates and two refreshes by QR enlarge.
TYPED_TEST(UpdateBatches, WhitenAsSingleUpdatesDo) {
  const double tolerance = 1024 * double(std::numeric_limits<float>::epsilon());
  for (const char* kind : {"kl-shampoo", "kl-soap"}) {
    const auto same = [&](const KeyValues& numbers, const Words& words, bool in_bf16, bool late) {
      MatrixOptions options = batch_options(kind, numbers, words);
      options.refresh_every = 3;
      expect_same_rotations<TypeParam>(options, in_bf16, late, most_batch_scratch, tolerance);
    };
    for (const bool in_bf16 : {false, true}) same({}, {}, in_bf16, false);
    same({}, {}, false, true);
    same({{"clamp", 0}, {"sort", 1}}, {{"first_step", "use"}, {"decay_order", "before"}}, false, false);
  }
}

MatrixOptions shampoo_options(const KeyValues& numbers = {}, const Words& words = {}) {
  MatrixOptions options = batch_options("shampoo", numbers, words);
  options.refresh_every = 3;
  return options;
}

TYPED_TEST(UpdateBatches, TakeRootsAsSingleUpdatesDo) {
  const auto same = [](const MatrixOptions& options, bool in_bf16 = false, double tolerance = 0) {
    expect_same_rotations<TypeParam>(options, in_bf16, false, most_batch_scratch, tolerance);
  };
  for (const bool in_bf16 : {false, true}) same(shampoo_options(), in_bf16);
  for (const char* graft : {"none", "sgd", "adagrad"}) same(shampoo_options({}, {{"graft", graft}}));
  same(shampoo_options({{"beta3", 0.5}, {"start_step", 1}}, {{"root", "eigh"}, {"decay_order", "after"}}));
  MatrixOptions put_off = shampoo_options();
  put_off.refresh_staleness = 2;
  same(put_off);
  // Blocks: 70 x 90 is 3 x 3 of them. The direction of a block is rounded once more in single updates.
  same(shampoo_options({{"max_dim", 32}}), false, 8 * std::numeric_limits<float>::epsilon());
}

// The passes of an update, by name: all matrices take those of one.
std::map<std::string, int>& passes_seen() {
  static std::map<std::string, int> seen;
  return seen;
}

// All matrices take these passes together in updates from `begins` on, and the others never.
template <class Space>
void expect_one_launch(const MatrixOptions& options, unsigned begins, const std::vector<const char*>& together,
                       const std::vector<const char*>& alone) {
  BatchRig<Space> run(options, mixed_shapes, false);
  run.range = batch_range<Space>(options, run.items, 0, mixed_shapes.size());
  for (unsigned t = 1; t <= begins + 1; ++t) {
    passes_seen().clear();
    run.set_gradients(t);
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(
        [](const char* name, std::uint32_t, std::uint64_t*) { ++passes_seen()[name]; });
    run.step_together({t, 0.125, 0.5, 0.5});
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
    if (t < begins) continue;
    for (const char* name : together)
      EXPECT_EQ(passes_seen()[name], std::string(name) == "graft_squares" || std::string(name) == "scale_lines" ? 2 : 1)
          << options.kind << ": " << name << ", update " << t;
    for (const char* name : alone) EXPECT_EQ(passes_seen()[name], 0) << options.kind << ": " << name;
  }
}

TYPED_TEST(UpdateBatches, TakeOneLaunchOfEachPass) {
  // The first update makes bases, of one matrix after another; roots come with the first refresh.
  expect_one_launch<TypeParam>(soap_options(), 2, {"average_momenta", "rotated_adams", "move_weights"},
                               {"average_m", "rotated_adam", "move_weight"});
  const std::vector<const char*> alone = {"row_squares", "column_squares", "average_eigen", "average_m", "move_weight"};
  expect_one_launch<TypeParam>(
      batch_options("kl-shampoo"), 2,
      {"inverse_roots", "average_momenta", "scale_damped", "line_squares", "scale_lines", "move_weights"}, alone);
  expect_one_launch<TypeParam>(batch_options("kl-soap"), 2,
                               {"inverse_roots", "average_squares", "line_squares", "scale_lines", "average_momenta",
                                "divide_by_root", "move_weights"},
                               alone);
  expect_one_launch<TypeParam>(batch_options("soap-muon"), 2,
                               {"momenta", "form_blends", "divide_moments", "match_squares", "match_factors",
                                "match_scale", "ns_gram_squares", "ns_gram_norms", "ns_normalize", "muon_move"},
                               {"momentum", "form_blend", "divide_moment", "match_own", "ns_gram_norm", "ns_copy"});
  expect_one_launch<TypeParam>(shampoo_options({{"max_dim", 32}}), 3,
                               {"filter", "graft_squares", "graft_factors", "move_weights"},
                               {"graft_factor", "scale_block", "move_weight"});
}

// Which matrices are together: equal wide forms in one stack, up to the scratch of a batch.
TEST(UpdateBatchesOfARange, HoldWhatTheScratchAllows) {
  BatchRig<Serial> run(batch_options("muon"), mixed_shapes, false);
  const auto batches = [&](std::size_t begin, std::size_t end, std::size_t most) {
    return batch_range<Serial>(run.options, run.items, begin, end, most);
  };
  const BatchedRange<Serial> all = batches(0, mixed_shapes.size(), most_batch_scratch);
  EXPECT_EQ(all.batches.size(), 1u);
  EXPECT_EQ(all.together, (std::vector<std::size_t>{7, 0, 1, 4, 2, 6, 3, 5}));
  EXPECT_EQ(batches(2, 5, most_batch_scratch).together, (std::vector<std::size_t>{4, 2, 3}));
  const std::size_t large = scratch_in_batch<Serial>(run.options, false, 70, 90, false);
  EXPECT_EQ(batches(0, mixed_shapes.size(), large).batches.size(), 3u);
  EXPECT_EQ(batches(0, mixed_shapes.size(), large - 1).alone, (std::vector<std::size_t>{3, 5}));
}

TEST(UpdateBatchesOfARange, LeaveOutWhatGoesAlone) {
  const auto scratch = [](const MatrixOptions& options, std::size_t rows = 24, std::size_t cols = 40,
                          bool copied = false) { return scratch_in_batch<Serial>(options, false, rows, cols, copied); };
  const MatrixOptions plain = batch_options("muon");
  EXPECT_GT(scratch(plain), 0u);
  EXPECT_LT(scratch_in_batch<Serial>(plain, true, 24, 40, false), scratch(plain));
  EXPECT_EQ(scratch(plain, 24, 40, true), 0u);
  EXPECT_EQ(scratch(plain, 8192, 8192), 0u);
  EXPECT_EQ(scratch(batch_options("muon", {}, {{"ns_form", "gram"}})), 0u);
  EXPECT_GT(scratch(batch_options("muon", {}, {{"ns_norm", "gram"}})), scratch(plain));
  EXPECT_EQ(scratch(batch_options("muon", {{"norm_snap", 1}})), 0u);
  EXPECT_EQ(scratch(batch_options("muon", {{"row_equilibration", 1}})), 0u);
  EXPECT_EQ(scratch(batch_options("galore")), 0u);
  MatrixOptions ruled = plain;
  ruled.rules.cautious = true;
  EXPECT_EQ(scratch(ruled), 0u);
  MatrixOptions paged = plain;
  paged.state_tier = Tier::host;
  EXPECT_EQ(scratch(paged), 0u);
}

TEST(UpdateBatchesOfARange, LeaveOutRotationsThatGoAlone) {
  const auto scratch = [](const MatrixOptions& options, std::size_t rows = 24, std::size_t cols = 40) {
    return scratch_in_batch<Serial>(options, false, rows, cols, false);
  };
  EXPECT_EQ(scratch(soap_options()), 3 * 24 * 40 * sizeof(float));
  EXPECT_EQ(scratch(soap_options({}, {{"matmul_precision", "tf32"}})), scratch(soap_options()));
  EXPECT_EQ(scratch(soap_options({}, {{"matmul_precision", "bf16"}})), 0u);
  EXPECT_EQ(scratch(soap_options({}, {{"momentum_basis", "rotated"}})), 0u);
  EXPECT_EQ(scratch(soap_options({{"normalize", 1}})), 0u);
  EXPECT_EQ(scratch(soap_options({{"factor_bias_correction", 1}})), 0u);
  EXPECT_EQ(scratch(soap_options(), 8192, 40), 0u);
  EXPECT_GT(scratch(batch_options("soap-muon")), 3 * 24 * 40 * sizeof(float));
  EXPECT_EQ(scratch(batch_options("soap-muon", {}, {{"ns_form", "gram"}})), 0u);
  EXPECT_EQ(scratch(batch_options("soap-muon", {}, {{"matmul_precision", "bf16"}})), 0u);
  MatrixOptions paged = soap_options();
  paged.tier = Tier::host;
  EXPECT_EQ(scratch(paged), 0u);
}

TEST(UpdateBatchesOfARange, LeaveOutRootsAndWhiteningThatGoAlone) {
  const auto scratch = [](const MatrixOptions& options, std::size_t rows = 24, std::size_t cols = 40) {
    return scratch_in_batch<Serial>(options, false, rows, cols, false);
  };
  const MatrixOptions kl = batch_options("kl-shampoo");
  EXPECT_EQ(scratch(kl), (2 * 24 * 40 + 64) * sizeof(float));
  EXPECT_EQ(scratch(batch_options("kl-soap")), scratch(kl));
  EXPECT_EQ(scratch(batch_options("kl-shampoo", {}, {{"matmul_precision", "bf16"}})), 0u);
  EXPECT_EQ(scratch(shampoo_options()), 2 * 24 * 40 * sizeof(float) + 3 * 256);
  EXPECT_GT(scratch(shampoo_options(), 8192, 40), 0u);  // its blocks are smaller
  EXPECT_EQ(scratch(shampoo_options({{"packed", 1}})), 0u);
  EXPECT_EQ(scratch(shampoo_options({{"merge_dims", 1}}), 24, 40), 0u);
  EXPECT_EQ(scratch(shampoo_options({}, {{"matmul_precision", "bf16"}})), 0u);
  MatrixOptions paged = shampoo_options();
  paged.tier = Tier::host;
  EXPECT_EQ(scratch(paged), 0u);
}

}  // namespace
}  // namespace sestina::reference

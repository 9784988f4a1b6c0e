// The optimizer of a whole model: routing, planned bytes, heads as matrices of their own, streams.
#include <gtest/gtest.h>

#include <numeric>

#include "core/optimizer/stream_share.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina {
namespace {

OptimizerOptions set_options_of(const std::string& kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.lr = 0.01;
  options.matrix = default_options(*find_matrix_kind(kind));
  return options;
}

std::vector<std::string> field_names(const StageRig<Host, float>& rig, const std::string& tensor) {
  std::vector<std::string> names;
  const std::string path = "/optimizer/" + tensor + "/";
  for (const StateField& field : rig.stage.optimizer().state())
    if (field.path.rfind(path, 0) == 0) names.push_back(field.path.substr(path.size()));
  return names;
}

TEST(Optimizer, TakesTheBytesThatThePlanSays) {
  for (const MatrixKind& kind : matrix_kinds())
    for (const int bits : {32, 8}) {
      OptimizerOptions options = set_options_of(kind.name);
      options.state_bits = bits;
      options.state_block = 16;
      options.matrix->state_bits = bits;
      options.matrix->state_block = 16;
      if (bits == 8 && options.matrix->has("projector_bits")) options.matrix->set("projector_bits", 4);
      StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
      EXPECT_EQ(rig.stage.optimizer().state_bytes(),
                optimizer_state_bytes(tensor_specs(small_model(Family::llama)), options, sizeof(float)))
          << kind.name << ", " << bits << " bits";
    }
}

// As optimizer.kind, and for what a matrix optimizer leaves.
TEST(Optimizer, ElementwiseRulesTakeTheBytesThatThePlanSays) {
  for (const std::string& rule : element_rules())
    for (const bool alone : {true, false}) {
      OptimizerOptions options = alone ? OptimizerOptions() : set_options_of("muon");
      if (alone) options.kind = rule;
      options.adamw.rule = *find_element_rule(rule);
      StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
      EXPECT_EQ(field_names(rig, "lm_head.weight"), element_fields(options.adamw.rule));
      EXPECT_EQ(rig.stage.optimizer().state_bytes(),
                optimizer_state_bytes(tensor_specs(small_model(Family::llama)), options, sizeof(float)))
          << rule;
    }
}

// Matrices that are cut into blocks too, by heads or whole.
TEST(Optimizer, OfBlocksTakesTheBytesThatThePlanSays) {
  for (const std::string& kind : cut_kind_names())
    for (const bool per_head : {false, true}) {
      OptimizerOptions options = set_options_of(kind);
      options.matrix->set("max_dim", 7);
      options.per_head = per_head;
      StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
      EXPECT_EQ(rig.stage.optimizer().state_bytes(),
                optimizer_state_bytes(tensor_specs(small_model(Family::llama)), options, sizeof(float)))
          << kind;
      const std::string name = std::string("model.layers.0.self_attn.q_proj.weight") + (per_head ? "/head_03" : "");
      EXPECT_FALSE(field_names(rig, name + "/block_00_02").empty()) << kind;
    }
}

// What a device may start as one recorded update: all but those that start or refresh something.
TEST(Optimizer, RepeatsItselfBetweenRefreshes) {
  for (const MatrixKind& kind : matrix_kinds()) {
    OptimizerOptions options = set_options_of(kind.name);
    const bool refreshes = kind.refresh_every > 0;
    if (refreshes) options.matrix->refresh_every = 4;
    if (options.matrix->has("start_step")) options.matrix->set("start_step", 1);
    StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
    rig.stage.initialise(1);
    std::int32_t tokens[18];
    std::iota(std::begin(tokens), std::end(tokens), 4);
    rig.load(tokens);
    Optimizer<Host, float>& optimizer = rig.stage.optimizer();
    int repeated = 0, refreshed = 0;
    for (std::int64_t t = 1; t <= 12; ++t) {
      rig.forward_backward(1, 0);
      const bool repeats = optimizer.repeats();
      rig.update(t, 1, 1);
      const RefreshAges ages = optimizer.refresh_ages();
      const bool is_new = ages.count > 0 && ages.sum == 0;
      EXPECT_FALSE(repeats && is_new) << kind.name << ", update " << t;
      EXPECT_TRUE(!refreshes || !repeats || t > 1) << kind.name;
      repeated += repeats ? 1 : 0;
      refreshed += is_new ? 1 : 0;
    }
    const bool decides_as_it_goes = kind.name == "galore" || kind.name == "apollo";  // these draw, or look
    EXPECT_EQ(repeated, !refreshes ? 12 : decides_as_it_goes ? 0 : 12 - refreshed) << kind.name;
  }
}

// A training step reads its losses with the norm; they are those of the micro-batches one by one.
TEST(Stage, LossesNotedForTheNormAreThoseOfThePasses) {
  const OptimizerOptions options = set_options_of("muon");
  PassOptions setting{2, 8, false, true};
  setting.micros = 2;
  StageRig<Host, float> rig(small_model(Family::llama), setting, &options);
  rig.stage.initialise(1);
  std::int32_t tokens[18];
  double alone[2];
  for (int micro = 0; micro < 2; ++micro) {
    std::iota(std::begin(tokens), std::end(tokens), 4 + micro);
    rig.load(tokens);
    rig.forward_backward(1, micro);
    alone[micro] = rig.stage.model().loss_sum(rig.slot[0]);
  }
  rig.stage.norm().squares(Host());
  EXPECT_EQ(rig.stage.norm().noted(0), alone[0]);
  EXPECT_EQ(rig.stage.norm().noted(1), alone[1]);
  EXPECT_NE(alone[0], alone[1]);
}

TEST(Optimizer, SendsMatricesOfBlocksToTheMatrixOptimizerAndTheRestToAdamW) {
  OptimizerOptions options = set_options_of("muon");
  options.group = {{"*.down_proj.*", {}, {}, "adamw"}, {"lm_head.weight", {}, {}, "muon"}};
  StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
  using Names = std::vector<std::string>;
  const Names adamw = {"momentum", "second_moment"}, muon = {"momentum"};
  EXPECT_EQ(field_names(rig, "model.layers.1.self_attn.q_proj.weight"), muon);
  EXPECT_EQ(field_names(rig, "model.layers.1.mlp.down_proj.weight"), adamw);
  EXPECT_EQ(field_names(rig, "model.embed_tokens.weight"), adamw);
  EXPECT_EQ(field_names(rig, "model.layers.0.input_layernorm.weight"), adamw);
  EXPECT_EQ(field_names(rig, "lm_head.weight"), muon);
}

// Those of rotations by a key of their own, whatever those of matrices are.
TEST(Optimizer, MomentsOfRotationsInEightBitsLieInOneRow) {
  ModelConfig model = small_model(Family::llama);
  model.linear.form = "poet-x";
  model.linear.block_size = 4;
  model.linear.state_bits = 8;
  OptimizerOptions options;
  options.state_block = 16;
  StageRig<Host, float> rig(model, {2, 8}, &options);
  using Names = std::vector<std::string>;
  const std::string rotation = "model.layers.1.self_attn.q_proj.weight/rotation_in";
  EXPECT_EQ(field_names(rig, rotation),
            (Names{"momentum_codes", "momentum_scales", "second_moment_codes", "second_moment_scales"}));
  EXPECT_EQ(field_names(rig, "lm_head.weight"), (Names{"momentum", "second_moment"}));
  EXPECT_EQ(rig.stage.optimizer().state_bytes(), optimizer_state_bytes(tensor_specs(model), options, sizeof(float)));
  const std::int64_t numbers = model.hidden_size * 3 / 2;
  for (const StateField& field : rig.stage.optimizer().state())
    if (field.path == "/optimizer/" + rotation + "/momentum_scales")
      EXPECT_EQ(field.shape, std::vector<std::int64_t>{(numbers + 15) / 16});
}

// A byte for each moment of a matrix, and four for a block of it; vectors keep their numbers.
TEST(Optimizer, MomentsInEightBitsAreThoseOfMatricesUnderAdamW) {
  OptimizerOptions options = set_options_of("muon"), full = options;
  options.state_bits = 8;
  options.state_block = 16;
  StageRig<Host, float> rig(small_model(Family::llama), {2, 8}, &options);
  using Names = std::vector<std::string>;
  EXPECT_EQ(field_names(rig, "model.layers.1.self_attn.q_proj.weight"), Names{"momentum"});
  EXPECT_EQ(field_names(rig, "model.layers.0.input_layernorm.weight"), (Names{"momentum", "second_moment"}));
  EXPECT_EQ(field_names(rig, "lm_head.weight"),
            (Names{"momentum_codes", "momentum_scales", "second_moment_codes", "second_moment_scales"}));
  for (const StateField& field : rig.stage.optimizer().state()) {
    if (field.path != "/optimizer/lm_head.weight/momentum_scales") continue;
    const ModelConfig model = small_model(Family::llama);
    EXPECT_EQ(field.dtype, DType::f32);
    EXPECT_EQ(field.shape, (std::vector<std::int64_t>{model.vocab_size, (model.hidden_size + 15) / 16}));
  }
  const TensorSpec head = tensor_specs(small_model(Family::llama)).back();
  ASSERT_EQ(head.name, "lm_head.weight");
  EXPECT_EQ(adamw_bytes(head, 3, 20, options, 4), 2u * (60 + 3 * 2 * 4));
  EXPECT_EQ(adamw_bytes(head, 3, 20, full, 4), 2u * 60 * 4);
}

// One head of q is orthogonalised as if it were a matrix on its own.
TEST(Optimizer, HeadsAreMatricesOfTheirOwn) {
  OptimizerOptions whole = set_options_of("muon"), heads = whole;
  heads.per_head = true;
  StageRig<Host, float> rig(small_model(Family::llama), {2, 8, false, true}, &heads);
  EXPECT_EQ(field_names(rig, "model.layers.0.self_attn.q_proj.weight/head_03"), std::vector<std::string>{"momentum"});
  EXPECT_TRUE(field_names(rig, "model.layers.0.self_attn.o_proj.weight/head_00").empty());
  rig.stage.initialise(1);
  std::int32_t tokens[18];
  std::iota(std::begin(tokens), std::end(tokens), 4);
  rig.load(tokens);
  rig.forward_backward(1, 0);

  const auto& q = rig.stage.tensors()[2];
  ASSERT_EQ(q.spec.name, "model.layers.0.self_attn.q_proj.weight");
  const std::size_t n = q.master.size() / 4;
  const Kokkos::View<float*, Kokkos::HostSpace> alone("w", n), gradient("g", n);
  for (std::size_t i = 0; i < n; ++i) {
    alone(i) = q.master(2 * n + i);
    gradient(i) = q.gradient(2 * n + i);
  }
  const auto optimizer = make_matrix_optimizer<Serial>(Serial(), *heads.matrix, {"/optimizer/w", 6, 20, 0});
  Stream<Serial> stream{Serial(), Gemm<Serial>(Serial(), true),
                        Workspace<Serial>(bytes_taken<Serial>(
                            [&](auto& counter) { declare_update<Serial>(counter, *heads.matrix, 6, 20); }))};
  optimizer->step(
      stream, {1, 0.01, 0, 0.5},
      {"w", Matrix<const float, Serial>(gradient.data(), 6, 20), Matrix<float, Serial>(alone.data(), 6, 20), {}});
  rig.update(1, 1.0, 0.5);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(alone(i), q.master(2 * n + i)) << i;
}

TEST(Balance, GivesEveryLaneAboutTheSame) {
  const std::vector<double> cost = {5, 4, 3, 3, 3, 2};
  const std::vector<int> stream = balance(cost, 2);
  double load[2] = {};
  for (std::size_t i = 0; i < cost.size(); ++i) load[stream[i]] += cost[i];
  EXPECT_EQ(load[0], 10);
  EXPECT_EQ(load[1], 10);
  EXPECT_EQ(balance({1, 2, 3}, 1), std::vector<int>(3, 0));
  EXPECT_TRUE(balance({}, 4).empty());
}

}  // namespace
}  // namespace sestina

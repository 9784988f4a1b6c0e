// FLOPs of models whose weights are in another form than dense, against what the products of a pass count.
#include <gtest/gtest.h>

#include <cmath>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/model/formed_weights.hpp"
#include "regression/unit/core/model_rig.hpp"
#include "regression/unit/core/stage_rig.hpp"

namespace sestina {
namespace {

using Variant = LinearOptions::Variant;

constexpr int sequences = 2, sequence = 7;

Options work_options(const std::string& form, Family family = Family::llama) {
  Options options;
  ModelConfig& c = options.model = small_model(family);
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.head_dim = 4;
  c.linear.form = form;
  c.linear.block_size = 4;
  c.linear.group_size = 16;
  c.linear.rank = 3;
  c.linear.merge_every = 5;
  options.data.sequence_length = sequence;
  options.train.global_batch = 3 * sequences;
  options.train.micro_batch = sequences;
  return options;
}

using Rig = ModelRig<Host, float>;

// Of all products of the forward and backward passes of an update.
double counted_passes(const Options& options, const ModelConfig& config) {
  const int micros = options.train.global_batch / options.train.micro_batch;
  StageRig<Host, float> rig(
      config,
      {.micro_batch = sequences, .sequence = sequence, .deterministic = options.run.deterministic, .micros = micros},
      &options.optimizer);
  rig.stage.initialise(7);
  const std::vector<std::int32_t> window(sequences * (sequence + 1), 1);
  rig.load(window.data());
  rig.stage.model().gemm().take_count();
  for (int micro = 0; micro < micros; ++micro) rig.forward_backward(1, micro);
  return rig.stage.model().gemm().take_count().flops;
}

double counted_merge(const ModelConfig& config) {
  Rig rig(config, sequences, sequence);
  initialise_formed<Host, float>(rig.exec, rig.model, rig.arena, rig.weights, 7);
  rig.model.gemm().take_count();
  for_each_formed(rig.weights, [&](const FormedWeight& w) { rig.model.merge(w, 7, 1); });
  return rig.model.gemm().take_count().flops;
}

// Attention and the head are those of the dense model: what a pass and the share of a merge count beyond it.
void expect_counted(const Options& options, const std::string& what) {
  Options never = options;
  never.model.linear.merge_every = 0;
  const double tokens = options.train.global_batch * sequence;
  const double beyond = counted_passes(options, options.model) - counted_passes(options, dense_model(options.model)),
               dense = flops_per_token(options.model, sequence);
  EXPECT_NEAR((flops_per_token(never) - dense) * tokens, beyond, 1e-9 * dense * tokens) << what;
  EXPECT_GT(std::abs(beyond), 0) << what;
  if (options.model.linear.form != "poet-x") return;
  EXPECT_NEAR((flops_per_token(options) - flops_per_token(never)) * tokens * 5, counted_merge(options.model),
              1e-6 * dense)
      << what;
}

TEST(ModelWork, IsWhatTheProductsCount) {
  for (const Family family : {Family::llama, Family::gpt}) {
    expect_counted(work_options("lora", family), "lora");
    for (const Variant variant : {Variant::fast, Variant::mem, Variant::xq}) {
      Options options = work_options("poet-x", family);
      options.model.linear.variant = variant;
      expect_counted(options, "poet-x, one series backward for three micro-batches");
      options.model.linear.one_block = true;
      expect_counted(options, "poet-x, one block of each side");
      options.model.linear.one_block = false;
      options.run.deterministic = true;
      expect_counted(options, "poet-x, each micro-batch's gradients in a tree");
    }
  }
}

// Frozen weights have no gradients: a third of the dense work falls away where adapters are thin.
TEST(ModelWork, ThinAdaptersSaveTheWeightGradients) {
  Options options;
  options.model = preset("llama-1b");
  options.data.sequence_length = 1024;
  const double dense = flops_per_token(options);
  EXPECT_EQ(dense, flops_per_token(options.model, 1024));
  options.model.linear.form = "lora";
  options.model.linear.rank = 1;
  const std::int64_t matrices = sum_over_tensors(dense_model(options.model), [](const TensorSpec& spec) {
    return spec.role == Role::matrix ? spec.elements() : 0;
  });
  EXPECT_NEAR((dense - flops_per_token(options)) / (2.0 * static_cast<double>(matrices)), 1, 0.01);
}

// A side that tensor parallelism does not cut is rotated, and projected, on every rank.
TEST(ModelWork, WhatRanksComputeAlikeCountsOnEachOfThem) {
  for (const char* form : {"lora", "poet-x"}) {
    Options options = work_options(form);
    options.model.num_attention_heads = options.model.num_key_value_heads = 4;
    const double one = flops_per_token(options);
    options.parallel.tp = 2;
    EXPECT_GT(flops_per_token(options), one) << form;
    options.parallel.tp = 1;
    options.parallel.dp = 3;
    EXPECT_EQ(flops_per_token(options) > one, std::string(form) == "poet-x") << "each replica merges";
  }
}

TEST(ModelWork, CodedWeightsWorkAsDenseOnes) {
  Options options = work_options("int8");
  EXPECT_DOUBLE_EQ(flops_per_token(options), flops_per_token(options.model, sequence));
}

}  // namespace
}  // namespace sestina

// Keys of the forms of weights: rules between them, what does not go with a form, what follows from other sections.
#include "core/optimizer/base/routing.hpp"
#include "regression/unit/core/keys_by_name.hpp"
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

TEST(FormOptions, RefusesWhatDoesNotGoWithAFormOfWeights) {
  const std::string poet = "[model.linear]\nform = \"poet-x\"\nblock_size = 4\non_indivisible = \"dense\"\n";
  expect_error(poet + "[optimizer]\nqk_clip = 10\n", "optimizer.qk_clip: scales weights that");
  expect_error("[model.linear]\nform = \"poet-x\"\nblock_size = 7\n", "model.linear.block_size: does not divide the");
  expect_error("[model.linear]\nform = \"lora\"\nblock_size = 7\n", "model.linear.block_size: unknown key");
  EXPECT_EQ(error_of(poet + "[metrics]\nrotations_every = 5\n"), "");
  expect_error("[metrics]\nrotations_every = 5\n", "metrics.rotations_every: measures rotations, which");
  expect_error("[model.linear]\nform = \"lora\"\n[metrics]\nrotations_every = 5\n", "metrics.rotations_every");
  expect_error(poet + "[metrics]\nrotation_bound = 0.3\n", "metrics.rotation_bound: unknown key");
  expect_error("[model.linear]\nvariant = \"mem\"\n", "model.linear.variant: unknown key");
}

// Two ranks have 32 of the query width, 16 of that of keys and values and 48 of the MLP: three halves as many numbers.
TEST(FormOptions, MomentsOfRotationsInEightBitsAreForAdamWAndUncutBlocks) {
  const auto refused = [](const std::string& more, int bits = 8) -> std::string {
    Deck deck;
    deck.add_text(
        "[model]\nfamily = \"llama\"\nnum_hidden_layers = 1\nvocab_size = 256\nnum_attention_heads = 4\n"
        "hidden_size = 64\nnum_key_value_heads = 2\nintermediate_size = 96\n[model.linear]\n"
        "form = \"poet-x\"\nblock_size = 4\n" +
            fmt::format("state_bits = {}\n", bits) + more,
        "a.toml", "/folder");
    Options::read(deck);
    return complaint(deck);
  };
  const std::string two = "[parallel]\ntp = 2\n", by_muon = "[optimizer]\nkind = \"muon\"\n";
  for (const std::string& more : {std::string(), two + "[optimizer]\nstate_block = 8\n",
                                  by_muon + "[[optimizer.group]]\nmatch = \"*/rotation_*\"\nkind = \"adamw\"\n"})
    EXPECT_EQ(refused(more), "") << more;
  for (const auto& [said, what] :
       {std::pair(refused(two),
                  "optimizer.state_block: parallel.tp = 2 leaves multiples of 24 numbers of rotations on a rank: with "
                  "model.linear.state_bits = 8 a block of 256 would lie on two ranks"),
        std::pair(refused(two), "allowed 8, or model.linear.state_bits = 32"),
        std::pair(refused(by_muon), "model.linear.state_bits: model.layers.0.self_attn.q_proj.weight/rotation_in is"),
        std::pair(refused("[optimizer]\nkind = \"lion\"\n"), "model.linear.state_bits: \"lion\" keeps its state in 32"),
        std::pair(refused("", 16), "model.linear.state_bits: no such width, got 16, allowed 32, 8")})
    EXPECT_NE(said.find(what), said.npos) << said;
}

TEST(FormOptions, MergesOfPoetKeepResidualsInBf16AndMayBeStaggered) {
  const std::string poet = "[model.linear]\nform = \"poet-x\"\nblock_size = 4\n";
  EXPECT_FALSE(read(poet).model.linear.residual);
  const std::string bf16_run = "[train]\nprecision = \"bf16\"\n";
  EXPECT_TRUE(read(poet + bf16_run).model.linear.residual);
  EXPECT_FALSE(read(poet + "merge_residual = false\n" + bf16_run).model.linear.residual);
  EXPECT_FALSE(read(poet + "variant = \"xq\"\ngroup_size = 4\n" + bf16_run).model.linear.residual);
  EXPECT_TRUE(read(poet + "variant = \"xq\"\ngroup_size = 4\nmerge_residual = true\n").model.linear.residual);
  EXPECT_TRUE(read(poet + "merge_phase = \"staggered\"\n").model.linear.staggered);
  EXPECT_EQ(read(poet + "init = \"uniform-spectrum\"\n").model.linear.init, LinearOptions::Init::uniform_spectrum);
  expect_error(poet + "merge_phase = \"staggered\"\nclip_warmup_steps = 3\n",
               "model.linear.clip_warmup_steps: conflicts");
  expect_error(poet + "merge_phase = \"staggered\"\n[parallel]\npp = 2\nschedule = \"async-1f1b\"\n",
               "model.linear.merge_phase: conflicts");
  EXPECT_FALSE(read(poet).model.linear.one_block);
  EXPECT_TRUE(read(poet + "sampling = \"fully-stochastic\"\n").model.linear.one_block);
  expect_error(poet + "sampling = \"half\"\n", "model.linear.sampling");
  EXPECT_EQ(read(poet).model.linear.merge_bound, 0);
  EXPECT_EQ(read(poet + "merge_bound = 0.3\nmerge_bound_every = 4\n").model.linear.merge_bound_every, 4);
  expect_error(poet + "merge_bound_every = 4\n", "model.linear.merge_bound_every: unknown key");
  expect_error(poet + "merge_bound = -1\n", "model.linear.merge_bound");
  expect_error(poet + "merge_bound = 0.3\nclip_warmup_steps = 3\n", "model.linear.clip_warmup_steps: conflicts");
  expect_error(poet + "merge_bound = 0.3\n[parallel]\npp = 2\nschedule = \"async-1f1b\"\n",
               "model.linear.merge_bound: conflicts");
}

TEST(FormOptions, CodesOfPoetAreOfEightOrFourBits) {
  const std::string coded = "[model.linear]\nform = \"poet-x\"\nvariant = \"xq\"\nblock_size = 4\ngroup_size = 4\n";
  EXPECT_EQ(read(coded).model.linear.base_bits, 8);
  EXPECT_EQ(read(coded + "base_bits = 4\n").model.linear.base_bits, 4);
  expect_error(coded + "base_bits = 3\n", "model.linear.base_bits: no such width, got 3, allowed 8, 4");
  const std::string odd = "[model.linear]\nform = \"poet-x\"\nvariant = \"xq\"\nblock_size = 4\ngroup_size = 7\n";
  expect_error(odd + "base_bits = 4\n",
               "model.linear.base_bits: two codes share a byte, and model.linear.group_size = 7");
  EXPECT_EQ(read(odd).model.linear.group_size, 7);
  expect_error("[model.linear]\nform = \"poet-x\"\nblock_size = 4\nbase_bits = 4\n",
               "model.linear.base_bits: unknown key");
}

TEST(FormOptions, ShardsOfPoetAreThoseOfTensorParallelismUnlessTheyAreSaid) {
  const std::string poet = "[model.linear]\nform = \"poet-x\"\nblock_size = 4\n";
  EXPECT_EQ(read(poet).model.linear.shards, 1);
  EXPECT_EQ(read(poet + "[parallel]\ntp = 2\n").model.linear.shards, 2);
  EXPECT_EQ(read(poet + "shards = 2\n").model.linear.shards, 2);
  expect_error(poet + "shards = 1\n[parallel]\ntp = 2\n",
               "parallel.tp: does not divide model.linear.shards = 1, of which ranks hold some, got 2, allowed 1");
  expect_error(poet + "shards = 3\n",
               "model.linear.shards: 3 (by default parallel.tp) does not divide num_attention_heads");
  const std::string coded = poet + "shards = 2\nvariant = \"xq\"\n";
  expect_error(coded + "group_size = 7\n", "model.linear.group_size: does not divide the");
  EXPECT_EQ(read(coded + "group_size = 4\n").model.linear.group_size, 4);
  const std::int64_t heads = read("").model.num_key_value_heads, part = read("").model.key_value_width() / heads;
  expect_error(fmt::format("[model.linear]\nform = \"poet-x\"\nblock_size = {}\nshards = {}\n", 2 * part, heads),
               fmt::format("in {} shards of {}", heads, part));
}

// A resume on other ranks goes on with the shards of the run: they are written where nobody gave them.
TEST(FormOptions, ShardsOfPoetOutliveTheRanksThatTheyCameFrom) {
  Deck deck;
  deck.add_text(model + "[model.linear]\nform = \"poet-x\"\nblock_size = 4\n[parallel]\ntp = 2\n", "a.toml", "");
  Options::read(deck);
  deck.finish();
  Deck again;
  again.add_text(deck.dump(), "dump", "");
  again.add_override("parallel.tp=1");
  EXPECT_EQ(Options::read(again).model.linear.shards, 2);
  EXPECT_TRUE(forbidden_changes(deck, again).empty());
  again.add_override("model.linear.shards=1");
  Options::read(again);
  ASSERT_EQ(forbidden_changes(deck, again).size(), 1u);
  EXPECT_EQ(forbidden_changes(deck, again).front().key, "model.linear.shards");
}

TEST(FormOptions, TakesMatrixOptimizersOfPackedRotationsThatKeepThemSkew) {
  const std::string poet = "[model.linear]\nform = \"poet-x\"\nblock_size = 4\n",
                    by_adamw = "[[optimizer.group]]\nmatch = \"*/rotation_*\"\nkind = \"adamw\"\n";
  const auto kind = [&](const std::string& name) { return poet + "[optimizer]\nkind = \"" + name + "\"\n"; };
  for (const std::string name : {"muon", "shampoo", "soap", "soap-muon", "kl-shampoo", "kl-soap", "basis-rotation"}) {
    const Options o = read(kind(name));
    for (const TensorSpec& spec : tensor_specs(o.model))
      if (spec.skew_block > 0) {
        EXPECT_TRUE(is_matrix_optimized(spec, o.optimizer)) << name;
        EXPECT_EQ(rates_of(spec, o.optimizer).lr, o.optimizer.lr * o.model.linear.lr_factor);
        EXPECT_EQ(rates_of(spec, o.optimizer).weight_decay, 0);
        EXPECT_EQ(matrix_parts(spec, o.optimizer).size(), static_cast<std::size_t>(spec.rows / 6));
      }
  }
  for (const std::string name : {"normuon", "adamuon", "galore", "apollo"}) {
    expect_error(
        kind(name),
        "optimizer.kind: model.layers.0.self_attn.q_proj.weight/rotation_in is packed skew-symmetric matrices, "
        "whose updates by it would not be skew-symmetric, got \"" +
            name + "\", allowed adamw, muon, shampoo");
    const Options o = read(kind(name) + by_adamw);
    for (const TensorSpec& spec : tensor_specs(o.model)) EXPECT_FALSE(is_matrix_optimized(spec, o.optimizer));
  }
  const std::string refresh = "[optimizer.refresh]\n";
  expect_error(kind("soap") + "sides = \"smaller\"\n", "optimizer.kind: model.layers.0.self_attn.q_proj.weight/");
  EXPECT_GT(read(kind("soap") + refresh + "mode = \"async\"\n").optimizer.matrix->refresh_staleness, 0);
  expect_error(kind("soap") + refresh + "mode = \"async\"\nvisibility = \"eager\"\n",
               "optimizer.refresh.visibility: model.layers.0.self_attn");
  EXPECT_TRUE(read(kind("soap") + refresh + "tier = \"nvme\"\n").optimizer.matrix->pages_any(MemorySpace::host));
  expect_error(kind("soap") + "max_dim = 3\n",
               "rotation_in is packed skew-symmetric matrices of side 4, which are never cut, got 3, allowed >= 4");
  read(kind("soap") + "max_dim = 4\n");
  read(kind("soap") + refresh + "mode = \"async\"\n" + by_adamw);
}

TEST(FormOptions, TakesFormsOfWeightsInEverySchedule) {
  for (const std::string form : {"form = \"poet-x\"\nblock_size = 4\n", "form = \"lora\"\n"})
    for (const std::string schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "async-1f1b"})
      EXPECT_EQ(read("[model.linear]\n" + form + "[parallel]\npp = 2\nschedule = \"" + schedule + "\"\n").parallel.pp,
                2);
}

TEST(FormOptions, ClipRisesBehindAMerge) {
  LinearOptions o;
  o.form = "poet-x";
  o.merge_every = 10;
  o.clip_warmup_steps = 4;
  o.clip_warmup_until = 25;
  o.clip_start_ratio = .2;
  EXPECT_EQ(clip_norm_at(o, 1, 1), 1);  // before the first merge
  EXPECT_EQ(clip_norm_at(o, 1, 11), .2);
  EXPECT_DOUBLE_EQ(clip_norm_at(o, 1, 13), .6);
  EXPECT_EQ(clip_norm_at(o, 1, 15), 1);
  EXPECT_EQ(clip_norm_at(o, 2, 21), .4);
  EXPECT_EQ(clip_norm_at(o, 1, 31), 1);  // it is over
  EXPECT_EQ(clip_norm_at(LinearOptions{}, 3, 11), 3);
}

}  // namespace
}  // namespace sestina

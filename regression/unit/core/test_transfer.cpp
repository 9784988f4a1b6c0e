// Rates that transfer: the factors of every kind of tensor and optimizer by hand, in rates, decays and first weights,
// and what is refused. The formulas stand in core/deck/transfer.hpp.
#include <cmath>

#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/transfer_factors.hpp"
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

// Four times the width and three times the depth of the model that was tuned, unless a test says otherwise.
constexpr const char* wide = R"(
[model]
family = "llama"
hidden_size = 256
num_hidden_layers = 6
num_attention_heads = 8
vocab_size = 300
[schedule]
lr = 0.01
transfer = {from_hidden = 64, from_layers = 2}
)";

Options read_wide(const std::string& toml, const std::string& base = wide) {
  Deck deck;
  deck.add_text(base + toml, "a.toml", "/folder");
  Options options = Options::read(deck);
  deck.finish();
  return options;
}

TensorSpec spec_of(const Options& options, const std::string& name) {
  for (const TensorSpec& spec : tensor_specs(options.model))
    if (spec.name == name) return spec;
  ADD_FAILURE() << name;
  return {};
}

void expect_rates(const Options& options, const std::string& name, double lr, double decay, double range) {
  const TensorSpec spec = spec_of(options, name);
  const TensorRates rates = rates_of(spec, options.optimizer);
  EXPECT_NEAR(rates.lr, lr, 1e-12) << name;
  EXPECT_NEAR(rates.weight_decay, decay, 1e-12) << name;
  const double own = spec.initial_range > 0 ? spec.initial_range : options.model.initializer_range;
  if (spec.initial == Initial::normal) EXPECT_NEAR(own, range, 1e-12) << name;
}

const std::string q = "model.layers.1.self_attn.q_proj.weight", o = "model.layers.1.self_attn.o_proj.weight",
                  down = "model.layers.0.mlp.down_proj.weight", head = "lm_head.weight",
                  embedding = "model.embed_tokens.weight", gain = "model.layers.0.input_layernorm.weight";

// AdamW: lr / 4 and the same decay; ends of branches lr / 12, decay 3; first weights / 2, / 6 there, / 4 in the head.
TEST(Transfer, ElementwiseRulesFallWithTheWidth) {
  const Options adamw = read_wide("[optimizer]\nweight_decay = 0.2\n");
  expect_rates(adamw, q, 0.0025, 0.2, 0.01);
  expect_rates(adamw, o, 0.01 / 12, 0.6, 0.02 / 6);
  expect_rates(adamw, down, 0.01 / 12, 0.6, 0.02 / 6);
  expect_rates(adamw, head, 0.0025, 0.2, 0.005);
  expect_rates(adamw, embedding, 0.01, 0.2, 0.02);
  expect_rates(adamw, gain, 0.01, 0, 0);
  expect_rates(read_wide("[optimizer]\nkind = \"adam\"\nweight_decay = 0.2\n"), q, 0.0025, 0.2, 0.01);
}

// Of one RMS, an update has a spectral norm of twice that at four times the width: lr / 2, decay / 2. Of the norm of
// the shape it keeps it: lr, decay / 4.
TEST(Transfer, MatricesFollowTheSpectralNormOfTheirUpdates) {
  const auto with = [](const std::string& keys) { return read_wide("[optimizer]\nweight_decay = 0.2\n" + keys); };
  for (const char* kind :
       {"muon", "normuon", "adamuon", "soap", "kl-soap", "shampoo", "kl-shampoo", "basis-rotation"}) {
    const Options one_rms = with("kind = \"" + std::string(kind) + "\"\n");
    expect_rates(one_rms, q, 0.005, 0.1, 0.01);
    expect_rates(one_rms, o, 0.005 / 3, 0.3, 0.02 / 6);
    expect_rates(one_rms, head, 0.0025, 0.1, 0.005);
    expect_rates(one_rms, embedding, 0.01, 0.1, 0.02);
  }
  for (const char* scale : {"original", "shape_scaling", "unit_rms_norm"})
    for (const char* kind : {"muon", "normuon", "soap-muon"})
      expect_rates(with("kind = \"" + std::string(kind) + "\"\nscale = \"" + scale + "\"\n"), q, 0.01, 0.05, 0.01);
  expect_rates(with("kind = \"soap-muon\"\nscale = \"spectral\"\n"), q, 0.005, 0.1, 0.01);
  expect_rates(with("kind = \"normuon\"\nscale = \"original\"\nkeep_norm = false\n"), q, 0.005, 0.1, 0.01);
  expect_rates(with("kind = \"muon\"\nscale = \"original\"\nupdate_rms = 0.2\n"), q, 0.005, 0.1, 0.01);
}

// A share of the norm of the weight is a constant of the width; at the end of a branch the weight is smaller already.
TEST(Transfer, SharesOfTheWeightStay) {
  const Options ball = read_wide("[optimizer]\nkind = \"muon\"\nhyperball = true\n");
  expect_rates(ball, q, 0.01, 0, 0.01);
  expect_rates(ball, o, 0.01, 0, 0.02 / 6);
  expect_rates(read_wide("[optimizer]\nkind = \"adam\"\nhyperball = true\n"), q, 0.005, 0, 0.01);
}

// Numbers that a deck gives to groups and to ranges of first weights are those of the model that was tuned, too; what
// follows from the inputs of a weight does already.
TEST(Transfer, NumbersOfTheDeckAreThoseOfTheTunedModel) {
  const Options options = read_wide(
      "[[optimizer.group]]\nmatch = \"*q_proj*\"\nlr_multiplier = 2\nweight_decay = 0.4\n"
      "[model.init]\nq = 0.1\nv = \"fan_in\"\ndown = 0\nhead = \"fan_in\"\n");
  expect_rates(options, q, 0.005, 0.4, 0.05);
  const double fan_in = 1 / std::sqrt(3.0 * 256);
  EXPECT_NEAR(spec_of(options, "model.layers.1.self_attn.v_proj.weight").initial_range, fan_in, 1e-12);
  EXPECT_NEAR(spec_of(options, head).initial_range, fan_in / 2, 1e-12);
  EXPECT_EQ(spec_of(options, down).initial, Initial::zeros);
}

TEST(Transfer, NothingChangesAtTheSizeThatWasTuned) {
  const std::string base = wide;
  const Options same =
      read_wide("transfer = {from_hidden = 256, from_layers = 6}\n", base.substr(0, base.find("transfer")));
  EXPECT_FALSE(same.optimizer.transfer.on());
  EXPECT_TRUE(transfer_lines(same).empty());
  expect_rates(same, o, 0.01, 0.1, 0.02);
  const std::vector<std::string> lines = transfer_lines(read_wide(""));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_NE(lines[0].find("0.25 of the width and 0.3333 of the depth"), std::string::npos) << lines[0];
  EXPECT_NE(lines[2].find("lr x 0.08333, decay x 3, first weights x 0.1667"), std::string::npos) << lines[2];
}

TEST(Transfer, WhatHasNoRuleIsRefused) {
  const std::string transfer = "[schedule]\ntransfer = {from_hidden = 64}\n";
  expect_error(transfer + "[optimizer]\nkind = \"galore\"\n", "kind = \"galore\" has no rule");
  expect_error(transfer + "[optimizer]\nkind = \"apollo\"\n", "kind = \"apollo\" has no rule");
  expect_error(transfer + "[optimizer]\nkind = \"shampoo\"\ngraft = \"sgd\"\n", "kind = \"shampoo\" has no rule");
  expect_error(transfer + "[model.linear]\nform = \"lora\"\n", "those of dense weights");
  Deck tied;
  tied.add_text(wide, "a.toml", "/folder");
  tied.add_override("model.tie_word_embeddings=true");
  tied.add_override("model.family=olmo2");
  Options::read(tied);
  const std::string errors = complaint(tied);
  EXPECT_NE(errors.find("a tied head has one rate with the embedding"), std::string::npos) << errors;
  EXPECT_NE(errors.find("norms after the branches of olmo2"), std::string::npos) << errors;
}

}  // namespace
}  // namespace sestina

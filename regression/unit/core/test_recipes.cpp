// Recipes: what a deck with one resolves to, who wins, and what cannot be.
#include <gtest/gtest.h>

#include "core/deck/deck.hpp"
#include "core/deck/kinds.hpp"
#include "core/deck/options.hpp"
#include "core/deck/recipes.hpp"

namespace sestina {
namespace {

constexpr const char* small_deck = R"(
[run]
steps = 1000
[model]
family = "gpt"
hidden_size = 48
num_hidden_layers = 2
num_attention_heads = 4
vocab_size = 256
)";

struct ReadDeck {
  Deck deck;
  Options options;
  explicit ReadDeck(const std::string& text, const std::vector<std::string>& overrides = {}) {
    deck.add_text(small_deck + text, "test", "");
    for (const std::string& assignment : overrides) deck.add_override(assignment);
    options = Options::read(deck);
    deck.finish();
  }
};

std::string recipe_text(const std::string& name) { return "[optimizer]\nrecipe = \"" + name + "\"\n"; }

std::string kind_of(const std::vector<RecipeKey>& keys) {
  return keys.front().value.substr(1, keys.front().value.size() - 2);
}

// Compares TOML numbers by value and all else by text.
bool same_text(const std::string& a, const std::string& b) {
  char *end_a = nullptr, *end_b = nullptr;
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
  return *end_a == 0 && *end_b == 0 && !a.empty() && !b.empty() ? x == y : a == b;
}

TEST(Recipes, EveryKeyIsWhatTheSourceSets) {
  for (const std::string& name : recipe_names()) {
    ModelConfig model = family_defaults(Family::gpt);
    model.hidden_size = 48;
    const std::vector<RecipeKey> keys = recipe_keys(name, model, 1000);
    ASSERT_EQ(keys.front().key, "optimizer.kind") << name;
    const MatrixKind* kind = find_matrix_kind(kind_of(keys));
    ASSERT_NE(kind, nullptr) << name;
    ReadDeck is(recipe_text(name));
    for (const RecipeKey& key : keys) {
      EXPECT_FALSE(key.source.empty()) << key.key;
      const std::string own = key.key.substr(key.key.rfind('.') + 1);
      if (own == "group") {
        EXPECT_GT(is.options.optimizer.group.size(), 0u) << name;
      } else if (!key.value.starts_with("[")) {
        EXPECT_TRUE(same_text(is.deck.resolved(key.key), key.value))
            << name << ": " << key.key << " is " << is.deck.resolved(key.key) << ", the recipe says " << key.value;
      }
    }
    EXPECT_EQ(is.deck.resolved("optimizer.recipe"), "\"" + name + "\"");
  }
}

TEST(Recipes, NumbersOfNanochat) {
  const ReadDeck is(recipe_text("nanochat"));
  const OptimizerOptions& o = is.options.optimizer;
  EXPECT_EQ(o.kind, "normuon");
  EXPECT_EQ(is.options.schedule.lr, 0.02);
  EXPECT_EQ(is.options.schedule.decay_steps, 650);
  EXPECT_EQ(is.options.train.clip_norm, 0);
  EXPECT_TRUE(o.rules.cautious);
  EXPECT_EQ(is.deck.resolved("optimizer.row_equilibration"), "true");
  EXPECT_EQ(o.schedule.decay, UpdateSchedule::Decay::cosine);
  // AdamW's rates go with (width / 768)^-1/2: here 4 times those of the published width; the groups multiply them.
  EXPECT_NEAR(o.adamw.lr, 0.008 * 4, 1e-15);
  ASSERT_EQ(o.group.size(), 1u);
  EXPECT_NEAR(o.adamw.lr * *o.group[0].lr_multiplier, 0.3 * 4, 1e-12);
  // Update t is the source's step t - 1: momentum rises over 400 and falls over the last 650 steps.
  EXPECT_NEAR(*o.schedule.momentum_at(1), 0.85, 1e-15);
  EXPECT_NEAR(*o.schedule.momentum_at(201), 0.91, 1e-15);
}

// min(lr, c (T - t)^1.2), where the two meet 2386 updates before the end of 2900: here of 1000.
TEST(Recipes, ScheduleOfTheSoapMuonEntry) {
  const ScheduleOptions schedule = ReadDeck(recipe_text("track3-soap-muon")).options.schedule;
  EXPECT_EQ(schedule.kind, ScheduleOptions::Kind::power);
  EXPECT_EQ(schedule.power, 1.2);
  EXPECT_EQ(schedule.decay_steps, 823);
  EXPECT_EQ(schedule.min_lr_ratio, 0);
}

TEST(Recipes, TiedHeadsHaveNoGroupOfTheirOwn) {
  EXPECT_EQ(ReadDeck(recipe_text("track3-muon")).options.optimizer.group.size(), 2u);
  EXPECT_EQ(ReadDeck(recipe_text("track3-muon"), {"model.tie_word_embeddings=true"}).options.optimizer.group.size(),
            1u);
}

TEST(Recipes, KeysOfTheDeckWin) {
  const ReadDeck is(recipe_text("track3-muon") +
                        "weight_decay = 0.3\nscalar.beta2 = 0.5\n[[optimizer.group]]\nmatch = \"*norm*\"\n"
                        "lr_multiplier = 2\n[schedule]\nkind = \"cosine\"\n",
                    {"optimizer.momentum=0.5", "schedule.lr=0.125"});
  const OptimizerOptions& o = is.options.optimizer;
  EXPECT_EQ(o.weight_decay, 0.3);
  EXPECT_EQ(o.adamw.beta2, 0.5);
  EXPECT_EQ(o.adamw.beta1, 0.8);
  ASSERT_EQ(o.group.size(), 1u);
  EXPECT_EQ(o.group[0].match, "*norm*");
  EXPECT_EQ(is.options.schedule.kind, ScheduleOptions::Kind::cosine);
  EXPECT_EQ(is.options.schedule.lr, 0.125);
  EXPECT_EQ(o.lr, 0.125);
  EXPECT_EQ(is.deck.resolved("optimizer.momentum"), "0.5");
}

TEST(Recipes, AnotherKindTakesWhatItHas) {
  const ReadDeck adamw(recipe_text("nanochat") + "kind = \"adamw\"\n");
  EXPECT_EQ(adamw.options.optimizer.kind, "adamw");
  EXPECT_EQ(adamw.options.optimizer.lr, 0.02);
  const ReadDeck alone(recipe_text("track3-soap-muon") + "kind = \"adamw\"\n");  // without rules that need norms
  EXPECT_FALSE(alone.options.optimizer.rules.any());
  const ReadDeck muon(recipe_text("nanochat") + "kind = \"muon\"\n");  // without NorMuon's beta2
  EXPECT_EQ(muon.options.optimizer.kind, "muon");
}

TEST(Recipes, StoredDeckNeedsNoRecipe) {
  for (const std::string& name : recipe_names()) {
    ReadDeck first(recipe_text(name));
    Deck again;
    again.add_text(first.deck.dump(), "checkpoint", "");
    again.add_override("run.steps=2000");  // what follows from the length stays as it was
    Options::read(again);
    again.finish();
    EXPECT_TRUE(forbidden_changes(first.deck, again).empty()) << name;
    EXPECT_EQ(first.deck.resolved("optimizer.momentum_schedule"), again.resolved("optimizer.momentum_schedule"));
    EXPECT_EQ(first.deck.resolved("schedule.decay_steps"), again.resolved("schedule.decay_steps"));
  }
}

std::string message_of(const std::string& text) {
  try {
    ReadDeck is(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Recipes, UnknownOnesAreTold) {
  const std::string message = message_of(recipe_text("nano"));
  EXPECT_NE(message.find("optimizer.recipe: unknown recipe, got \"nano\""), message.npos) << message;
  EXPECT_NE(message.find("track3-muon"), message.npos) << message;
}

// A recipe may name a kind that this program does not have: one error says so, and where the name comes from.
TEST(Recipes, KindThatIsNotHereIsOneError) {
  Deck deck;
  deck.add_text(small_deck, "test", "");
  deck.underlay("optimizer.kind", "\"none-such\"", "recipe of a test");
  Options::read(deck);
  try {
    deck.finish();
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("recipe of a test: optimizer.kind: unknown value, got \"none-such\"")) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
  for (const std::string& name : recipe_names()) {
    const std::string kind = kind_of(recipe_keys(name, family_defaults(Family::llama), 0));
    if (find_matrix_kind(kind) == nullptr) {
      EXPECT_NE(message_of(recipe_text(name)).find("recipe " + name), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sestina

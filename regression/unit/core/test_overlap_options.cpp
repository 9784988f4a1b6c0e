// Updates of layers before all gradients are there, and which decks cannot have them.
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

struct OverlapDeck {
  std::string parallel = "clip_scope = \"layer\"\ndp = 2\n", optimizer = "kind = \"muon\"\n", rest, train;
};

std::string overlapped(const OverlapDeck& of) {
  Deck deck;
  deck.add_text(model + of.rest + "[optimizer]\n" + of.optimizer + "[parallel]\noverlap_updates = true\n" +
                    of.parallel + "[train]\nglobal_batch = 8\nmicro_batch = 2\nclip_norm = 1.0\n" + of.train,
                "deck", "");
  Options options = Options::read(deck);
  require_trainable(deck, options);
  return complaint(deck);
}

TEST(OverlapOptions, GoWithClipsByLayerAndSynchronousStages) {
  EXPECT_FALSE(read("").parallel.overlap_updates);
  EXPECT_EQ(overlapped({}), "");
  EXPECT_EQ(overlapped({.parallel = "clip_scope = \"layer\"\ndp = 2\npp = 2\nschedule = \"zb-h1\"\n"}), "");
  EXPECT_EQ(read("[parallel]\nclip_scope = \"layer\"\n").parallel.clip_scope, ParallelOptions::ClipScope::layer);
}

TEST(OverlapOptions, SayWhatNeedsAllGradientsFirst) {
  const auto refused = [](const OverlapDeck& deck, const std::string& key) {
    const std::string error = overlapped(deck);
    EXPECT_NE(error.find(key + ": "), std::string::npos) << key << "\n" << error;
    EXPECT_NE(error.find("(parallel.overlap_updates = true)"), std::string::npos) << error;
  };
  const std::string layer = "clip_scope = \"layer\"\n";
  refused({.parallel = "dp = 2\n"}, "parallel.clip_scope");
  refused({.parallel = "clip_scope = \"group\"\n"}, "parallel.clip_scope");
  refused({.optimizer = "kind = \"adamw\"\n"}, "optimizer.kind");
  refused({.parallel = layer + "pp = 2\nschedule = \"async-1f1b\"\n"}, "parallel.schedule");
  refused({.parallel = layer + "dp = 2\npartition = \"groups\"\n"}, "parallel.partition");
  refused({.parallel = layer + "dp = 2\nshard = \"weights\"\n"}, "parallel.shard");
  refused({.parallel = layer + "tp = 2\n"}, "parallel.tp");
  refused({.rest = "[model.linear]\nform = \"lora\"\n"}, "model.linear.form");
  refused({.rest = "[run]\ndeterministic = true\naudit_every = 3\n"}, "run.audit_every");
  refused({.rest = "[run]\non_spike = \"rollback\"\n"}, "run.on_spike");
  refused({.train = "[train.lookahead]\nfactor = 0.3\n"}, "train.lookahead.factor");
  refused({.rest = "[metrics]\ntensors_every = 5\n"}, "metrics.tensors_every");
}

}  // namespace
}  // namespace sestina

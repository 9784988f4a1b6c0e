// Updates of matrices before all gradients are there, and which decks cannot have them.
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

struct OverlapDeck {
  std::string parallel = "clip_scope = \"matrix\"\ndp = 2\n", optimizer = "kind = \"muon\"\n", rest, train;
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

TEST(OverlapOptions, GoWithClipsByMatrixAndSynchronousStages) {
  EXPECT_FALSE(read("").parallel.overlap_updates);
  EXPECT_EQ(overlapped({}), "");
  EXPECT_EQ(overlapped({.parallel = "clip_scope = \"matrix\"\ndp = 2\npp = 2\nschedule = \"zb-h1\"\n"}), "");
  EXPECT_EQ(read("[parallel]\nclip_scope = \"matrix\"\n").parallel.clip_scope, ParallelOptions::ClipScope::matrix);
}

TEST(OverlapOptions, AnAllReduceIsOfWholeGradients) {
  EXPECT_EQ(read("[parallel]\nreduce = \"all\"\n").parallel.reduce, ParallelOptions::Reduce::all);
  const auto refused = [](const std::string& parallel, const std::string& why) {
    expect_error("[parallel]\nreduce = \"all\"\ndp = 2\n" + parallel, "parallel.reduce: conflicts with " + why);
  };
  refused("partition = \"groups\"\n", "parallel.partition = \"groups\"");
  refused("partition = \"replicated\"\n", "parallel.partition = \"replicated\"");
  refused("shard = \"gradients\"\n", "parallel.shard");
  refused("overlap_updates = true\n", "parallel.overlap_updates");
  refused("pp = 2\nschedule = \"async-1f1b\"\n", "parallel.schedule");
}

TEST(OverlapOptions, SayWhatNeedsAllGradientsFirst) {
  const auto refused = [](const OverlapDeck& deck, const std::string& key) {
    const std::string error = overlapped(deck);
    EXPECT_NE(error.find(key + ": "), std::string::npos) << key << "\n" << error;
    EXPECT_NE(error.find("(parallel.overlap_updates = true)"), std::string::npos) << error;
  };
  const std::string matrix = "clip_scope = \"matrix\"\n";
  refused({.parallel = "dp = 2\n"}, "parallel.clip_scope");
  refused({.parallel = "clip_scope = \"group\"\n"}, "parallel.clip_scope");
  refused({.optimizer = "kind = \"adamw\"\n"}, "optimizer.kind");
  refused({.parallel = matrix + "pp = 2\nschedule = \"async-1f1b\"\n"}, "parallel.schedule");
  refused({.parallel = matrix + "dp = 2\npartition = \"groups\"\n"}, "parallel.partition");
  refused({.parallel = matrix + "dp = 2\npartition = \"replicated\"\n"}, "parallel.partition");
  refused({.parallel = matrix + "dp = 2\nshard = \"weights\"\n"}, "parallel.shard");
  refused({.parallel = matrix + "tp = 2\n"}, "parallel.tp");
  refused({.rest = "[model.linear]\nform = \"lora\"\n"}, "model.linear.form");
  refused({.rest = "[run]\ndeterministic = true\naudit_every = 3\n"}, "run.audit_every");
  refused({.rest = "[run]\non_spike = \"rollback\"\n"}, "run.on_spike");
  refused({.train = "[train.lookahead]\nfactor = 0.3\n"}, "train.lookahead.factor");
  refused({.rest = "[metrics]\ntensors_every = 5\n"}, "metrics.tensors_every");
}

}  // namespace
}  // namespace sestina

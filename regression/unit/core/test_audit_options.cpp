// Keys of audits, and which decks cannot be audited.
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

std::string audited(const std::string& run, const std::string& rest) {
  Deck deck;
  deck.add_text(model + "[run]\naudit_every = 5\n" + run + rest + "[train]\nglobal_batch = 8\nmicro_batch = 2\n",
                "deck", "");
  Options options = Options::read(deck);
  require_trainable(deck, options);
  return complaint(deck);
}

const std::string deterministic = "deterministic = true\n";

TEST(AuditOptions, AreRead) {
  EXPECT_EQ(read("").run.audit_every, 0);
  const RunOptions run = read("[run]\naudit_every = 100\non_audit = \"stop\"\n").run;
  EXPECT_EQ(run.audit_every, 100);
  EXPECT_EQ(run.on_audit, RunOptions::OnAudit::stop);
  expect_error("[run]\naudit_every = -1\n", "run.audit_every");
  expect_error("[run]\non_audit = \"skip\"\n", "run.on_audit");
}

TEST(AuditOptions, SayWhatCannotBeAudited) {
  EXPECT_EQ(audited(deterministic, ""), "");
  EXPECT_EQ(audited(deterministic, "[parallel]\ndp = 2\ntp = 2\npp = 2\nschedule = \"zb-h1\"\n"), "");
  const auto refused = [](const std::string& run, const std::string& rest, const std::string& why) {
    const std::string error = audited(run, rest);
    EXPECT_NE(error.find("run.audit_every: conflicts with " + why), std::string::npos) << error;
  };
  refused("", "", "run.deterministic = false");
  refused(deterministic, "[train.lookahead]\nfactor = 0.3\n", "train.lookahead");
  refused(deterministic, "[parallel]\npp = 2\nschedule = \"async-1f1b\"\n", "parallel.schedule = \"async-1f1b\"");
  const std::string eager =
      "[optimizer]\nkind = \"soap\"\n[optimizer.refresh]\nmode = \"async\"\nstaleness = 2\nvisibility = \"eager\"\n";
  refused(deterministic, eager + "[parallel]\ndp = 2\npartition = \"replicated\"\n", "optimizer.refresh.visibility");
  EXPECT_EQ(audited(deterministic, eager + "[parallel]\ndp = 2\n"), "");
}

}  // namespace
}  // namespace sestina

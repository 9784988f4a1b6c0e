#include "io/checkpoint/manifest_json.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxRanks = 100000;

// Checkpoints of one rank from before there were more say ranks only.
void read_layout(const json& object, Manifest& manifest, const std::string& where) {
  Members members(object, where);
  manifest.ranks = members.count("ranks", kMaxRanks);
  manifest.dp = manifest.ranks;
  if (members.has("dp")) {
    manifest.dp = members.count("dp", kMaxRanks);
    manifest.tp = members.count("tp", kMaxRanks);
    manifest.pp = members.count("pp", kMaxRanks);
  }
  members.finish();
  if (manifest.dp * manifest.tp * manifest.pp != manifest.ranks)
    fail(ExitCode::bad_data, "{}: dp {} x tp {} x pp {} are not {} ranks (one shard each)", where, manifest.dp,
         manifest.tp, manifest.pp, manifest.ranks);
}

RunState read_run(const json& object, std::int64_t step, const std::string& where) {
  Members members(object, where);
  RunState run;
  run.step = step;
  run.sample = members.word("sample");
  run.tokens = members.word("tokens");
  run.seed = members.word("seed");
  run.loss = members.number_or_null("loss");
  run.instruction_set = members.text("instruction_set");
  run.tokenizer_digest = members.text("tokenizer_digest");
  run.deck = members.text("deck");
  run.extra = members.text("extra");
  members.finish();
  return run;
}

ordered_json layout_json(const Manifest& manifest) {
  return {{"ranks", manifest.ranks}, {"dp", manifest.dp}, {"tp", manifest.tp}, {"pp", manifest.pp}};
}

ordered_json run_json(const RunState& run) {
  return {{"sample", run.sample},
          {"tokens", run.tokens},
          {"seed", run.seed},
          {"loss", run.loss},
          {"instruction_set", run.instruction_set},
          {"tokenizer_digest", run.tokenizer_digest},
          {"deck", run.deck},
          {"extra", run.extra}};
}

}  // namespace sestina

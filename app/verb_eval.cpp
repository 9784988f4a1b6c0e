// `sestina eval`: validation loss and bits per byte of a checkpoint or an HF folder.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/dispatch.hpp"
#include "app/evaluation.hpp"
#include "app/kokkos_session.hpp"
#include "app/restore.hpp"
#include "app/run_data.hpp"
#include "app/verbs.hpp"

namespace sestina {

int run_eval(const EvalArguments& arguments) {
  const Source source = find_source(arguments.checkpoint, arguments.hf);
  const Options options = options_of(source, arguments.deck);

  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.data);
  const bool held_out = has_validation(options.data);
  const SampleSet set = open_samples(options, held_out ? Split::validation : Split::train, tokenizer.get());
  const KokkosSession kokkos(options.run.threads, arguments.kokkos);
  const auto result = dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    Session<Exec, typename decltype(tag)::type> session(exec, options.model, session_setting(options), nullptr);
    restore_weights(session, source);
    return *evaluate_loss(session, set, options.metrics.eval_batches, [] { return false; });
  });

  const std::string what = source.hf.empty() ? source.checkpoint : source.hf;
  if (!std::isfinite(result.loss))
    fail(ExitCode::diverged, "{}: its weights are finite, the loss is not: {}", what, result.loss);
  if (arguments.json) {
    nlohmann::ordered_json json{{"model", what},
                                {"split", held_out ? "validation" : "train"},
                                {"tokens", result.tokens},
                                {"loss", result.loss}};
    json["bits_per_byte"] =
        result.bits_per_byte ? nlohmann::ordered_json(*result.bits_per_byte) : nlohmann::ordered_json(nullptr);
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}\n{} tokens of the {} split: loss {:.6f}", what, result.tokens, held_out ? "validation" : "training",
               result.loss);
    if (result.bits_per_byte) fmt::print(", bits per byte {:.6f}", *result.bits_per_byte);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace sestina

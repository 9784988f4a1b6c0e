// `sestina eval`: loss, bits per byte and perplexity of a checkpoint or an HF folder, or its accuracy in multiple
// choice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/dispatch.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/train/evaluation.hpp"
#include "app/train/restore.hpp"
#include "app/train/run_data.hpp"
#include "app/verbs/choices.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

// use(executor) of an executor for forward passes with the weights of the source.
template <class Use>
auto with_model(const EvalArguments& arguments, const Source& source, const Options& options,
                const PassSetting& setting, const Use& use) {
  const KokkosSession kokkos(options.run.threads, arguments.kokkos);
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    const auto alone = make_lone_communicator();
    Executor<Exec, typename decltype(tag)::type> executor(exec, options, setting, *alone);
    restore_weights(executor, source);
    return use(executor);
  });
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// " +- 0.012" where an error is known.
std::string error_text(double error) { return std::isfinite(error) ? fmt::format(" +- {:.6f}", error) : ""; }

int eval_loss(const EvalArguments& arguments, const Source& source, const Options& options, const std::string& what) {
  require_byte_vocabulary(options);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.data);
  const bool held_out = has_validation(options.data);
  const SampleSet set = open_samples(options, held_out ? Split::validation : Split::train, tokenizer.get());
  const Evaluation result = with_model(arguments, source, options, pass_setting(options), [&](auto& executor) {
    return *evaluate_loss(executor, set, options.metrics.eval_batches, [] { return false; });
  });
  if (!std::isfinite(result.loss)) fail(ExitCode::diverged, "{}: its weights are finite, the loss is not", what);
  const double perplexity = std::exp(result.loss), error = mean_error(result.window_losses).error;
  if (arguments.json) {
    Json json{{"model", what},
              {"split", held_out ? "validation" : "train"},
              {"tokens", result.tokens},
              {"windows", result.window_losses.size()},
              {"loss", result.loss},
              {"loss_error", number(error)},
              {"perplexity", number(perplexity)}};
    json["bits_per_byte"] = result.bits_per_byte ? Json(*result.bits_per_byte) : Json(nullptr);
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("{}\n{} tokens of the {} split: loss {:.6f}{}", what, result.tokens, held_out ? "validation" : "training",
             result.loss, error_text(error));
  if (result.bits_per_byte) fmt::print(", bits per byte {:.6f}", *result.bits_per_byte);
  fmt::print(", perplexity {:.4f}\n", perplexity);
  return 0;
}

int eval_choices(const EvalArguments& arguments, const Source& source, const Options& options,
                 const std::string& what) {
  require_byte_vocabulary(options, true);
  constexpr std::size_t tokens_at_once = 4096;
  const std::vector<Question> questions = read_questions(arguments.choices);
  const Codec codec{open_tokenizer(options.data)};
  const std::int64_t end = codec.tokenizer ? codec.tokenizer->end_of_document() : options.model.eos_token_id;
  const auto choices = choice_tokens(questions, arguments.choices, codec, end, options.model);
  std::size_t longest = 1;
  for (const ChoiceTokens& choice : choices) longest = std::max(longest, choice.ids.size() - 1);
  PassSetting setting = pass_setting(options);
  setting.sequence = static_cast<int>(longest);
  setting.micro_batch = static_cast<int>(std::clamp<std::size_t>(tokens_at_once / longest, 1, choices.size()));
  setting.mask_documents = false;
  const ChoiceResult result =
      choice_result(questions, with_model(arguments, source, options, setting,
                                          [&](auto& executor) { return score_choices(executor, choices); }));
  if (arguments.json) {
    fmt::print("{}\n", Json{{"model", what},
                            {"choices", arguments.choices},
                            {"questions", result.questions},
                            {"accuracy", result.accuracy.mean},
                            {"accuracy_error", number(result.accuracy.error)},
                            {"accuracy_normalised", result.accuracy_normalised.mean},
                            {"accuracy_normalised_error", number(result.accuracy_normalised.error)}}
                           .dump());
    return 0;
  }
  fmt::print("{}\n{} questions of {}: accuracy {:.6f}{}, normalised by length {:.6f}{}\n", what, result.questions,
             arguments.choices, result.accuracy.mean, error_text(result.accuracy.error),
             result.accuracy_normalised.mean, error_text(result.accuracy_normalised.error));
  return 0;
}

}  // namespace

int run_eval(const EvalArguments& arguments) {
  const Source source = find_source(arguments.checkpoint, arguments.hf);
  const Options options = options_of(source, arguments.deck);
  const std::string what = source.hf.empty() ? source.checkpoint : source.hf;
  return (arguments.choices.empty() ? eval_loss : eval_choices)(arguments, source, options, what);
}

}  // namespace sestina

// `sestina eval`: loss, bits per byte and perplexity of a checkpoint or an HF folder, or its accuracy in multiple
// choice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/command/verbs.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/evaluation.hpp"
#include "app/train/rank_source.hpp"
#include "app/train/run_data.hpp"
#include "app/verbs/choices.hpp"
#include "io/hf/hf_companions.hpp"
#include "parallel/stage/make_stages.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

// The inputs that all ranks have agreed on.
struct Setup {
  const EvalArguments& arguments;
  Runtime& runtime;
  Source source;
  Options options = {};
  std::string what() const { return source.hf.empty() ? source.checkpoint : source.hf; }
};

// Returns use(evaluator) of an evaluator for forward passes with the weights of the source.
void with_model(const Setup& setup, const PassOptions& setting, const std::function<void(Evaluator&)>& use) {
  Runtime& runtime = setup.runtime;
  const Options& options = setup.options;
  const auto session = start_kokkos(runtime, options.run.threads, setup.arguments.kokkos, 0);
  runtime.begin_phase("building the model");
  Evaluator evaluator(*make_stages(options.run.space, options.train.precision), options, setting, runtime.world());
  runtime.phase("reading the weights", [&] { restore_weights(evaluator, setup.source, setup.arguments.weights); });
  runtime.set_timeout(options.run.abort_timeout);
  use(evaluator);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Writes " +- 0.012" where an error is known.
std::string error_text(double error) { return std::isfinite(error) ? fmt::format(" +- {:.6f}", error) : ""; }

int eval_loss(const Setup& setup) {
  const Options& options = setup.options;
  const std::string what = setup.what();
  const bool held_out = has_validation(options.data);
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SampleSet> set;
  setup.runtime.phase("opening the data", [&] {
    require_byte_vocabulary(options);
    tokenizer = open_tokenizer(options.data);
    set = std::make_unique<SampleSet>(
        open_samples(options, held_out ? Split::validation : Split::train, tokenizer.get(), {}, TextUse::ask));
  });
  Evaluation result;
  with_model(setup, pass_options(options), [&](Evaluator& evaluator) {
    result = *evaluate_loss(evaluator, *set, options.metrics.eval_batches, [&] {
      if (setup.runtime.size() > 1) call_roll(setup.runtime.world(), "evaluation");
      return false;
    });
  });
  if (!std::isfinite(result.loss)) fail_on_all(ExitCode::diverged, "{}: its weights are finite, the loss is not", what);
  if (!setup.runtime.is_first()) return 0;
  const double perplexity = std::exp(result.loss), error = mean_error(result.window_losses).error;
  if (setup.arguments.json) {
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

// The questions with their tokens for this model.
std::vector<ChoiceTokens> question_tokens(const Setup& setup, const std::vector<Question>& questions) {
  const Options& options = setup.options;
  require_byte_vocabulary(options, true);
  const Codec codec{open_tokenizer(options.data)};
  const SpecialTokens tokens = special_tokens(options, codec.tokenizer.get(), options.data.tokenizer,
                                              hf_companion_folder(setup.source.checkpoint, options.model.from_hf));
  return choice_tokens(questions, setup.arguments.choices, codec, tokens, options.model);
}

int eval_choices(const Setup& setup) {
  constexpr std::size_t tokens_at_once = 4096;
  const std::string what = setup.what();
  std::vector<Question> questions;
  std::vector<ChoiceTokens> choices;
  setup.runtime.phase("reading the questions", [&] {
    questions = read_questions(setup.arguments.choices);
    choices = question_tokens(setup, questions);
  });
  std::size_t longest = 1;
  for (const ChoiceTokens& choice : choices) longest = std::max(longest, choice.ids.size() - 1);
  PassOptions setting = pass_options(setup.options);
  setting.sequence = static_cast<int>(longest);
  setting.micro_batch = static_cast<int>(std::clamp<std::size_t>(tokens_at_once / longest, 1, choices.size()));
  setting.mask_documents = false;
  std::vector<double> scores;
  with_model(setup, setting, [&](Evaluator& evaluator) { scores = score_choices(evaluator, choices); });
  const ChoiceResult result = choice_result(questions, scores);
  if (!setup.runtime.is_first()) return 0;
  if (setup.arguments.json) {
    fmt::print("{}\n", Json{{"model", what},
                            {"choices", setup.arguments.choices},
                            {"questions", result.questions},
                            {"accuracy", result.accuracy.mean},
                            {"accuracy_error", number(result.accuracy.error)},
                            {"accuracy_normalised", result.accuracy_normalised.mean},
                            {"accuracy_normalised_error", number(result.accuracy_normalised.error)}}
                           .dump());
    return 0;
  }
  fmt::print("{}\n{} questions of {}: accuracy {:.6f}{}, normalised by length {:.6f}{}\n", what, result.questions,
             setup.arguments.choices, result.accuracy.mean, error_text(result.accuracy.error),
             result.accuracy_normalised.mean, error_text(result.accuracy_normalised.error));
  return 0;
}

// All ranks have the same inputs afterwards.
void prepare(Setup& setup) {
  const EvalArguments& arguments = setup.arguments;
  const std::string& choices = arguments.choices;
  warn_on_stderr(setup.runtime);
  setup.source = find_rank_source(setup.runtime, arguments.checkpoint, arguments.hf);
  setup.options = read_rank_options(
      setup.runtime, setup.source, arguments.deck,
      {{"--choices", choices.empty() ? "not given" : "given", "", true}, {"--weights", arguments.weights, "", true}});
  Options used = setup.options;
  if (!choices.empty()) used.data.source = used.data.validation = {};
  std::vector<std::pair<std::string, std::string>> files;
  if (!choices.empty()) files.emplace_back("--choices", choices);
  compare_rank_data(setup.runtime, setup.source, used, files);
}

}  // namespace

int run_eval(const EvalArguments& arguments, const RankSource& ranks) {
  Runtime runtime(ranks, find_start_timeout(arguments.deck));
  return run_on_ranks(runtime, [&] {
    Setup setup{arguments, runtime, {}};
    prepare(setup);
    return arguments.choices.empty() ? eval_loss(setup) : eval_choices(setup);
  });
}

}  // namespace sestina

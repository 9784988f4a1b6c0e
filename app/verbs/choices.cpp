#include "app/verbs/choices.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace sestina {
namespace {

using nlohmann::json;

[[noreturn]] void bad_line(const std::string& path, std::size_t line, const std::string& what) {
  fail(ExitCode::bad_data, "{}:{}: {}; expected {{\"context\": text, \"choices\": [text, ...], \"answer\": index}}",
       path, line, what);
}

const json& member(const json& object, const char* name, const std::string& path, std::size_t line) {
  const auto found = object.find(name);
  if (found == object.end()) bad_line(path, line, fmt::format("\"{}\" is missing", name));
  return *found;
}

Question read_question(const std::string& text, const std::string& path, std::size_t line) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) bad_line(path, line, "not a JSON object");
  const json &context = member(object, "context", path, line), &choices = member(object, "choices", path, line),
             &answer = member(object, "answer", path, line);
  if (!context.is_string()) bad_line(path, line, "\"context\" is not a string");
  if (!choices.is_array() || choices.size() < 2)
    bad_line(path, line, "\"choices\" is not a list of two or more strings");
  Question question{context.get<std::string>(), {}, 0, line};
  for (const json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
      bad_line(path, line, "a choice is not a string, or is empty");
    question.choices.push_back(choice.get<std::string>());
  }
  if (!answer.is_number_integer() || answer.get<std::int64_t>() < 0 ||
      answer.get<std::int64_t>() >= static_cast<std::int64_t>(choices.size()))
    bad_line(path, line, fmt::format("\"answer\" is {}, not an index from 0 to {}", answer.dump(), choices.size() - 1));
  question.answer = answer.get<std::size_t>();
  return question;
}

std::size_t best(const double* scores, std::size_t count) {
  return static_cast<std::size_t>(std::max_element(scores, scores + count) - scores);
}

}  // namespace

std::vector<Question> read_questions(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "--choices {}: cannot be read", path);
  std::vector<Question> questions;
  std::string text;
  for (std::size_t line = 1; std::getline(file, text); ++line)
    if (text.find_first_not_of(" \t\r") != text.npos) questions.push_back(read_question(text, path, line));
  if (questions.empty()) fail(ExitCode::bad_data, "--choices {}: holds no questions", path);
  return questions;
}

std::vector<ChoiceTokens> choice_tokens(const std::vector<Question>& questions, const std::string& path,
                                        const Codec& codec, const SpecialTokens& marks, const ModelConfig& model) {
  std::vector<ChoiceTokens> all;
  const auto room = static_cast<std::size_t>(model.max_position_embeddings) + 1;  // the last token is no input
  for (const Question& question : questions) {
    std::vector<std::int32_t> context = codec.encode(question.context);
    const std::vector<std::int32_t> ahead = context.empty() ? marks.start() : marks.prefix;
    if (context.empty() && ahead.empty())
      bad_line(path, question.line, "\"context\" is empty and no token is known that a text begins or ends with");
    for (const std::string& choice : question.choices) {
      ChoiceTokens tokens{codec.encode(question.context + choice), ahead.size() + context.size()};
      tokens.ids.insert(tokens.ids.begin(), ahead.begin(), ahead.end());
      if (tokens.begin >= tokens.ids.size())
        tokens.begin = tokens.ids.size() - 1;  // the choice was merged with its context
      const std::size_t excess = tokens.ids.size() > room ? tokens.ids.size() - room : 0;
      if (tokens.begin < excess + 1)
        bad_line(path, question.line,
                 fmt::format("a choice has {} tokens, the model has {} positions", tokens.ids.size() - tokens.begin,
                             model.max_position_embeddings));
      tokens.ids.erase(tokens.ids.begin(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(excess));
      tokens.begin -= excess;
      const std::int32_t largest = *std::max_element(tokens.ids.begin(), tokens.ids.end());
      if (largest >= model.vocab_size)
        bad_line(path, question.line,
                 fmt::format("token {} in the text; the model's vocabulary is 0 to {}", largest, model.vocab_size - 1));
      all.push_back(std::move(tokens));
    }
  }
  return all;
}

std::vector<double> score_choices(Evaluator& evaluator, const std::vector<ChoiceTokens>& choices) {
  const auto B = static_cast<std::size_t>(evaluator.options().micro_batch),
             length = static_cast<std::size_t>(evaluator.options().sequence);
  std::vector<std::int32_t> window(B * (length + 1));
  std::vector<float> losses(B * length);
  const auto dp = static_cast<std::size_t>(evaluator.grid().dp),
             dp_rank = static_cast<std::size_t>(evaluator.grid().dp_rank);
  std::vector<double> scores, part;
  for (std::size_t round = 0; round < choices.size(); round += dp * B) {
    const std::size_t end = std::min(round + dp * B, choices.size()), first = std::min(round + dp_rank * B, end),
                      rows = std::min(B, end - first);
    part.assign(end - round, 0.0);
    if (rows > 0) {
      std::fill(window.begin(), window.end(), -1);  // no targets after the end, and attention is causal
      for (std::size_t b = 0; b < rows; ++b)
        std::copy(choices[first + b].ids.begin(), choices[first + b].ids.end(),
                  window.begin() + static_cast<std::ptrdiff_t>(b * (length + 1)));
      evaluator.loss({window.data(), nullptr});
    }
    if (rows > 0 && evaluator.has_last_stage()) {
      evaluator.token_losses(losses.data());
      for (std::size_t b = 0; b < rows; ++b) {
        const ChoiceTokens& choice = choices[first + b];
        for (std::size_t at = choice.begin; at < choice.ids.size(); ++at)
          part[first + b - round] -= losses[b * length + at - 1];
      }
    }
    share_results(evaluator, part);  // in every round, so that a lost rank is missed soon
    scores.insert(scores.end(), part.begin(), part.end());
  }
  return scores;
}

ChoiceResult choice_result(const std::vector<Question>& questions, const std::vector<double>& log_likelihoods) {
  std::vector<double> right, right_normalised;
  const double* scores = log_likelihoods.data();
  for (const Question& question : questions) {
    const std::size_t n = question.choices.size();
    std::vector<double> per_byte(n);
    for (std::size_t i = 0; i < n; ++i) per_byte[i] = scores[i] / static_cast<double>(question.choices[i].size());
    right.push_back(best(scores, n) == question.answer ? 1 : 0);
    right_normalised.push_back(best(per_byte.data(), n) == question.answer ? 1 : 0);
    scores += n;
  }
  return {questions.size(), mean_error(right), mean_error(right_normalised)};
}

}  // namespace sestina

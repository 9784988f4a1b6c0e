// Multiple choice: which of several continuations of a context the model finds most likely. The file is JSONL, lines
// {"context": text, "choices": [text, ...], "answer": index from 0}; a choice follows its context as it stands, so it
// brings its own leading space.
#pragma once
#include <string>
#include <vector>

#include "app/train/evaluation.hpp"
#include "app/verbs/sampling.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

struct Question {
  std::string context;
  std::vector<std::string> choices;  // two or more, none empty
  std::size_t answer = 0;
  std::size_t line = 0;  // line in the file, from 1
};

// Throws Error(input_missing) when the file cannot be read, Error(bad_data) with the line that is not of this form;
// blank lines are left out.
std::vector<Question> read_questions(const std::string& path);

// Context and choice as tokens. The choice is what the tokens of both together have beyond those of the context alone.
struct ChoiceTokens {
  std::vector<std::int32_t> ids;
  std::size_t begin = 0;  // first token of the choice, at least 1
};
// Returns all choices of all questions, in order. A context has the tokenizer's prefix before it; an empty one is
// SpecialTokens::start(). What is longer than the model's positions loses tokens in front; Error(bad_data) with path
// and line when a choice alone is too long, an id is beyond the vocabulary, or the context is empty and there is no
// token to start from.
std::vector<ChoiceTokens> choice_tokens(const std::vector<Question>&, const std::string& path, const Codec&,
                                        const SpecialTokens&, const ModelConfig&);

// Returns the log-likelihood of each choice in nats, on all ranks. The evaluator's windows have room for the longest
// (ids.size() - 1); data-parallel ranks share them.
std::vector<double> score_choices(Evaluator&, const std::vector<ChoiceTokens>&);

// The share of the questions whose answer has the largest log-likelihood, and that with the largest per byte of the
// choice; among equals the first choice counts.
struct ChoiceResult {
  std::size_t questions = 0;
  MeanError accuracy, accuracy_normalised;
};
ChoiceResult choice_result(const std::vector<Question>&, const std::vector<double>& log_likelihoods);

}  // namespace sestina

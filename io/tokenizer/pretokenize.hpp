// The cutting of text into pieces that the model encodes one by one: the pre_tokenizer of tokenizer.json. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer_pattern.hpp"

namespace sestina {

// One step; each runs on every piece of the one before.
struct PreStep {
  enum class Kind { prefix_space, split };
  Kind kind = Kind::split;
  std::vector<Pattern> pattern;  // one when kind is split
  bool removed = false;          // the delimiters are dropped (else each is a piece of its own)
  bool invert = false;           // what lies between matches is the delimiter
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  // cuttable: the steps are one of the three known patterns alone, see next_cut.
  explicit PreTokenizer(std::vector<PreStep> steps, bool cuttable);
  // The pieces of valid UTF-8 `text`, none empty; the views live during the call of `sink` only.
  void split(std::string_view text, Pattern::Match& match, const Sink& sink) const { run(0, text, match, sink); }
  bool cuttable() const { return cuttable_; }

 private:
  void run(std::size_t step, std::string_view text, Pattern::Match& match, const Sink& sink) const;
  std::vector<PreStep> steps_;
  bool cuttable_;
};

// First place at or after `from` where text can be cut in two without changing its pieces under the three known
// patterns: between a line feed and an ASCII letter, the line feed after an ASCII character that is no white space.
// There a piece always ends, and the white space before it is one character, so no look-ahead reaches across.
// text.size() when none.
std::size_t next_cut(std::string_view text, std::size_t from);

PreStep prefix_space_step();
PreStep split_step(Pattern pattern, bool removed = false, bool invert = false);
// A known pattern by its short name: gpt2, llama3, qwen. Error(usage) for another.
std::string_view pattern_named(std::string_view name);

}  // namespace sestina

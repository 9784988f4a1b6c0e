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
  // What a split does at a cut, see next_cut. ends_pieces: a piece ends there in any text. passes_over: no match
  // touches what is on either side.
  enum class AtCut { unknown, ends_pieces, passes_over };
  AtCut at_cut = AtCut::unknown;
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  explicit PreTokenizer(std::vector<PreStep> steps);
  // The pieces of valid UTF-8 `text`, none empty; the views live during the call of `sink` only. `begins`: not the
  // continuation of a text that was cut.
  void split(std::string_view text, Pattern::Match& match, const Sink& sink, bool begins = true) const {
    run(!begins && prefix_space() ? 1 : 0, text, match, sink);
  }
  bool cuttable() const { return cuttable_; }  // at next_cut, without changing a piece
  bool prefix_space() const { return !steps_.empty() && steps_[0].kind == PreStep::Kind::prefix_space; }  // before all

 private:
  void run(std::size_t step, std::string_view text, Pattern::Match& match, const Sink& sink) const;
  std::vector<PreStep> steps_;
  bool cuttable_;
};

// First place at or after `from` where text may be cut: between a line feed and an ASCII letter, the line feed after an
// ASCII character that is no white space. text.size() when none.
// Every pattern that at_cut calls ends_pieces is an alternation of letters or digits with at most one character ahead
// that is no line break; of other characters with line breaks (or '/') after them; and of white space. None of them
// can go on from the line feed to the letter, so a piece ends between them whatever came before. It is the same piece
// when the text ends there: the white space at the cut is one line feed, taken by \s*[\r\n]+ or the line breaks after
// punctuation, neither of which looks ahead, or by \s+(?!\S) at the end of text and by \s+ before the letter. A step
// that passes over (digits, ideographs) leaves the line feed and the letter in one piece, in which the same holds; at
// the piece's begin the character before the line feed is not there, which is no white space either.
std::size_t next_cut(std::string_view text, std::size_t from);
PreStep::AtCut at_cut(std::string_view pattern);

PreStep prefix_space_step();
PreStep split_step(Pattern pattern, bool removed = false, bool invert = false,
                   PreStep::AtCut at_cut = PreStep::AtCut::unknown);
// A known pattern by its short name: gpt2, llama3, qwen. Error(usage) for another.
std::string_view pattern_named(std::string_view name);

}  // namespace sestina

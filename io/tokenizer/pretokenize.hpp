// Takes a document apart into the pieces that the model encodes one by one: added tokens, sections, the pre_tokenizer
// of tokenizer.json. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/tokenizer_pattern.hpp"

namespace sestina {

// Tokens that are cut out of the text before the model sees it: "<|endoftext|>" and its like.
struct AddedToken {
  std::int64_t id = 0;
  std::string content;
  bool single_word = false;  // found only where no word character touches it
  bool lstrip = false;       // takes the white space on its left as well
  bool rstrip = false;       // the same on its right
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // left out by decode(skip_special)
};

// A stretch of text: an added token (id >= 0) or text between them (id = -1).
struct AddedSplit {
  std::int64_t id;
  std::string_view text;
};

// Finds the leftmost token, and of equals the longest, again and again; a match that its flags refuse is skipped whole.
// Order and overlap of stripped space follow the `tokenizers` package.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens = {});
  bool empty() const { return tokens_.empty(); }
  // A walk through a valid UTF-8 text.
  struct Scan {
    std::string_view text;
    std::size_t at = 0, done = 0;  // places up to which text was searched, and shown
    AddedSplit waiting{-1, {}};    // a token, while text before it is shown first
  };
  // Gives the next stretch, which points into the text; returns false at the end.
  bool next(Scan& scan, AddedSplit& split) const;
  // Appends all stretches of a text.
  void split(std::string_view text, std::vector<AddedSplit>& splits) const;

 private:
  struct Node {
    std::int32_t child = -1, sibling = -1, token = -1;  // first child, next sibling, index of the token that ends here
    char byte = 0;
  };
  bool find(Scan& scan, AddedSplit& token) const;
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;
  std::int32_t child(std::int32_t node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; node 0 is the root
  std::int32_t start_[256];  // the root's children by byte, -1 none
};

// A document as sections that are encoded one by one, on any thread, and together have the ids of the whole.
struct TextSection {
  std::int64_t id = -1;   // an added token, or -1: text
  std::string_view text;  // the text as it stands in the document
  bool begins = true;     // follows an added token or the document's begin: a prefix space is due
};

// The rules by which a tokenizer treats a text before its pieces are encoded.
struct SectionRules {
  const AddedTokens& raw;         // tokens looked for in the text as it stands
  const AddedTokens& normalized;  // tokens looked for in the normalized text
  bool nfc;                       // normalize
  bool cuttable;                  // text between added tokens may be cut at next_cut, see sections_cuttable
};

// Returns whether a text between raw added tokens can be cut at next_cut before it is normalized. `tokens` are the
// normalized ones; the pre-tokenizer gives `pieces_cuttable` and `prefix_space`.
bool sections_cuttable(bool nfc, const std::vector<AddedToken>& tokens, bool pieces_cuttable, bool prefix_space);

// Reads a document as sections. Added tokens are found in the whole document, so no cut changes them or the text next
// to them. Only where the text is normalized first are the normalized ones found later, when the section is encoded.
class SectionReader {
 public:
  // Valid UTF-8 and `rules` must outlive the reader. Text longer than `longest` is cut where it may be.
  SectionReader(const SectionRules& rules, std::string_view text, std::size_t longest);
  bool next(TextSection& section);

 private:
  bool next_stretch(AddedSplit& split);
  SectionRules rules_;
  std::size_t longest_;
  AddedTokens::Scan raw_, inner_;
  std::string_view rest_;  // the rest of the stretch that is being cut
  bool begins_ = true;
};

// The pre_tokenizer of tokenizer.json cuts text into pieces that the model encodes one by one.

// One step of it; each runs on every piece of the step before.
struct PreStep {
  enum class Kind { prefix_space, split };
  Kind kind = Kind::split;
  std::vector<Pattern> pattern;  // one when kind is split
  bool removed = false;          // the delimiters are dropped (else each is a piece of its own)
  bool invert = false;           // what lies between matches is the delimiter
  // The effect of a split at a cut, see next_cut. ends_pieces: a piece ends there in any text. passes_over: no match
  // touches the characters on either side.
  enum class AtCut { unknown, ends_pieces, passes_over };
  AtCut at_cut = AtCut::unknown;
};

class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  explicit PreTokenizer(std::vector<PreStep> steps);
  // Gives the pieces of valid UTF-8 `text`, none empty; the views live during the call of `sink` only. `begins`: the
  // text is not the continuation of one that was cut.
  void split(std::string_view text, Pattern::Match& match, const Sink& sink, bool begins = true) const {
    run(!begins && prefix_space() ? 1 : 0, text, match, sink);
  }
  bool cuttable() const { return cuttable_; }  // text may be cut at next_cut without changing a piece
  bool prefix_space() const { return !steps_.empty() && steps_[0].kind == PreStep::Kind::prefix_space; }  // before all

 private:
  void run(std::size_t step, std::string_view text, Pattern::Match& match, const Sink& sink) const;
  std::vector<PreStep> steps_;
  bool cuttable_;
};

// Returns the first place at or after `from` where text may be cut: between a line feed and an ASCII letter, the line
// feed after an ASCII character that is no white space. text.size() when none. Every pattern that at_cut calls
// ends_pieces is an alternation of letters or digits with at most one character ahead that is no line break; of other
// characters with line breaks (or '/') after them; and of white space. None of them can go on from the line feed to the
// letter, so a piece ends between them whatever came before. It is the same piece when the text ends there: the white
// space at the cut is one line feed, taken by \s*[\r\n]+ or the line breaks after punctuation, neither of which looks
// ahead, or by \s+(?!\S) at the end of text and by \s+ before the letter. A step that passes over (digits, ideographs)
// leaves the line feed and the letter in one piece, in which the same holds; at the piece's begin the character before
// the line feed is not there, which is no white space either.
std::size_t next_cut(std::string_view text, std::size_t from);
PreStep::AtCut at_cut(std::string_view pattern);

PreStep prefix_space_step();
PreStep split_step(Pattern pattern, bool removed = false, bool invert = false,
                   PreStep::AtCut at_cut = PreStep::AtCut::unknown);
// Returns a known pattern by its short name: gpt2, llama3, qwen. Error(usage) for another.
std::string_view pattern_named(std::string_view name);

}  // namespace sestina

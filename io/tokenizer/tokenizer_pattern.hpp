// Regular expressions of tokenizer.json files. They are written for Oniguruma in Ruby's syntax, as the `tokenizers`
// package reads them, and run here on PCRE2. No Kokkos.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sestina {

// The three patterns that pretraining tokenizers use, letter by letter as they stand in tokenizer.json.
extern const std::string_view kGpt2Pattern, kLlama3Pattern, kQwenPattern;

// Translates an expression for PCRE2. \s, \d and \p{...} become explicit classes, so that the result depends neither on
// the library's version of Unicode nor on its idea of white space and scripts: \s is White_Space, the others are those
// of unicode_class.hpp. Constructs that mean something else there, or nothing, are Error(bad_data).
std::string to_pcre2(std::string_view pattern, const std::string& where);

// Returns whether the library's version of Unicode is between these, both included.
bool pcre2_has_unicode(int first, int last);

// A compiled expression; thread-safe, each thread brings a Match.
class Pattern {
 public:
  class Match {
   public:
    Match();
    ~Match();
    Match(const Match&) = delete;
    Match& operator=(const Match&) = delete;
    std::size_t begin() const;
    std::size_t end() const;

   private:
    friend class Pattern;
    struct Handles;
    std::unique_ptr<Handles> handles_;
  };

  static Pattern regex(std::string_view pattern, const std::string& where);
  static Pattern literal(std::string_view text, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;

  // Finds the first match that begins at or after `from` in valid UTF-8 `text`. Error(bad_data) when the search exceeds
  // a number of steps in proportion to the text.
  bool find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code>);
  std::unique_ptr<Code> code_;
};

}  // namespace sestina

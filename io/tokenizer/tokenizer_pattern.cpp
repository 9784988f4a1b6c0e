// Translation of an expression, atom by atom. Whatever is not known to mean the same in both libraries is refused.
#include "io/tokenizer/tokenizer_pattern.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Inside of a character class. After the property itself: what Unicode 15.0 to 16.0 added to it.
constexpr std::string_view kLetters =
    R"(\p{L}\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85})"
    R"(\x{10EC2}-\x{10EC4}\x{1123F}\x{11240}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1})"
    R"(\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446})"
    R"(\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
    R"(\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kNumbers =
    R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
    R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
constexpr std::string_view kSpace =
    R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0E-\x1F\x21-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E})"
    R"(\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        atom(escape(false));
      } else if (c == '[') {
        atom(character_class());
      } else if (c == '(') {
        open_group();
      } else if (c == ')') {
        close_group();
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        quantifier();
      } else if (c == '^' || c == '$') {
        refuse(std::string("the anchor ") + c);
      } else {
        atom(std::string(1, c)), ++at_;
      }
    }
    if (!groups_.empty()) refuse("an unterminated group");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::bad_data, "{}: pattern \"{}\": {} at character {} is not supported", where_, pattern_, what, at_);
  }
  char next() {
    if (++at_ >= pattern_.size()) refuse("the end of a group");
    return pattern_[at_];
  }
  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
  }

  // An escape as PCRE2 needs it, inside or outside of a class; at_ goes past it.
  std::string escape(bool in_class) {
    const auto set = [&](std::string_view inside) {
      ++at_;
      return in_class ? std::string(inside) : fmt::format("[{}]", inside);
    };
    const char c = next();
    switch (c) {
      case 's':
        return set(kSpace);
      case 'S':
        return set(kNotSpace);
      case 'd':
        return set(R"(\p{Nd})");
      case 'p':
      case 'P':
        return property(in_class, c == 'P');
      case 'n':
        return ++at_, R"(\x0A)";
      case 'r':
        return ++at_, R"(\x0D)";
      case 't':
        return ++at_, R"(\x09)";
      case 'f':
        return ++at_, R"(\x0C)";
      case 'v':
        return ++at_, R"(\x0B)";
      case 'x':
      case 'u':
        return code_point(c == 'u');
      default:
        break;
    }
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      return ++at_, std::string("\\") + c;
    }
    refuse(std::string("\\") + c);
  }

  // \p{L}, \p{^L}, \P{L}: general categories and scripts.
  std::string property(bool in_class, bool negated) {
    if (next() != '{') refuse("\\p without a name in braces");
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) refuse("\\p without a name in braces");
    std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
    if (!name.empty() && name[0] == '^') negated = !negated, name.remove_prefix(1);
    const bool letters = std::all_of(name.begin(), name.end(),
                                     [](char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; });
    if (name.empty() || !letters) refuse("this property name");
    const bool widened = name == "L" || name == "N";
    if (widened && negated && in_class) refuse("a negated \\p{L} or \\p{N} within a class");
    at_ = close + 1;
    if (!widened) return fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    const std::string_view inside = name == "L" ? kLetters : kNumbers;
    return in_class ? std::string(inside) : fmt::format("[{}{}]", negated ? "^" : "", inside);
  }

  // \xHH, \x{H...}, \uHHHH.
  std::string code_point(bool four_digits) {
    std::string digits;
    ++at_;
    const bool braces = !four_digits && at_ < pattern_.size() && pattern_[at_] == '{';
    if (braces) ++at_;
    const std::size_t most = four_digits ? 4 : braces ? 6 : 2;
    while (at_ < pattern_.size() && digits.size() < most && std::isxdigit(static_cast<unsigned char>(pattern_[at_]))) {
      digits += pattern_[at_++];
    }
    const bool complete =
        braces ? !digits.empty() && at_ < pattern_.size() && pattern_[at_] == '}' : digits.size() == most;
    if (!complete) refuse("this \\x or \\u");
    if (braces) ++at_;
    if (std::stoul(digits, nullptr, 16) >= 0x80 && !four_digits && !braces) refuse("\\x for a single byte above 7F");
    return "\\x{" + digits + "}";
  }

  std::string character_class() {
    std::string text = "[";
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') text += '^', ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("an empty class");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      const char c = pattern_[at_];
      if (c == '[') refuse("a class within a class");
      if (c == '&' && pattern_.substr(at_, 2) == "&&") refuse("an intersection of classes");
      if (c == '\\') {
        text += escape(true);
      } else {
        text += c, ++at_;
      }
    }
    if (at_ >= pattern_.size()) refuse("an unterminated class");
    ++at_;
    return text + ']';
  }

  void open_group() {
    static constexpr std::string_view kKnown[] = {"(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    std::string_view head = "(";
    if (pattern_.substr(at_, 2) == "(?" || pattern_.substr(at_, 2) == "(*") {
      const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                       [&](auto k) { return pattern_.substr(at_, k.size()) == k; });
      if (known == std::end(kKnown)) refuse("this kind of group");
      head = *known;
    }
    if (groups_.size() >= 100) refuse("a group more than 100 deep");
    groups_.push_back(out_.size());
    out_ += head;
    at_ += head.size();
    atom_.reset();
  }

  void close_group() {
    if (groups_.empty()) refuse("an unmatched end of a group");
    atom_ = groups_.back();
    groups_.pop_back();
    out_ += ')';
    ++at_;
  }

  // In Ruby's syntax X{n,m}+ repeats X{n,m}, in PCRE2 it is possessive. *+, ++ and ?+ are possessive in both.
  void quantifier() {
    if (!atom_) refuse("a quantifier with nothing to repeat");
    const char c = pattern_[at_];
    if (c != '{') {
      out_ += c, ++at_;
      if (at_ < pattern_.size() && (pattern_[at_] == '+' || pattern_[at_] == '?')) out_ += pattern_[at_++];
    } else {
      const std::string bounds = interval();
      out_ += bounds;
      if (at_ < pattern_.size() && pattern_[at_] == '+') {
        out_.insert(*atom_, "(?:");
        out_ += ")+", ++at_;
      } else if (at_ < pattern_.size() && pattern_[at_] == '?') {
        if (bounds.find(',') == std::string::npos) refuse("{n}?");
        out_ += '?', ++at_;
      }
    }
    if (at_ < pattern_.size() && std::string_view("*+?{").find(pattern_[at_]) != std::string_view::npos) {
      refuse("a quantifier after a quantifier");
    }
    atom_.reset();
  }

  std::string interval() {
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) refuse("{ without }");
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool digits =
        std::all_of(inside.begin(), inside.end(), [](char c) { return (c >= '0' && c <= '9') || c == ','; });
    if (!digits || inside.size() > 11 || std::count(inside.begin(), inside.end(), ',') > 1 || inside.empty() ||
        inside == ",") {
      refuse("this repetition in braces");
    }
    at_ = close + 1;
    return fmt::format("{{{}{}}}", inside[0] == ',' ? "0" : "", inside);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::optional<std::size_t> atom_;  // where the last atom begins in out_
  std::vector<std::size_t> groups_;  // where the open groups begin in out_
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& where) { return Translator(pattern, where).run(); }

}  // namespace sestina

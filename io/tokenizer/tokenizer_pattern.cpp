// Translation of an expression, atom by atom. Whatever is not known to mean the same in both libraries is refused.
#include "io/tokenizer/tokenizer_pattern.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "io/tokenizer/unicode_class.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

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
        literal(c);
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

  void literal(char c) {
    if (caseless()) {
      // Texts that Oniguruma takes for equal to one letter when case does not count (ß and the ligatures of Latin).
      static constexpr std::string_view kPairs[] = {"ss", "st", "ff", "fi", "fl"};
      const char pair[] = {lower(c), lower(at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : ' ')};
      const bool expands =
          std::find(std::begin(kPairs), std::end(kPairs), std::string_view(pair, 2)) != std::end(kPairs);
      if (expands || static_cast<unsigned char>(c) >= 0x80) refuse("this letter where case does not count");
    }
    std::size_t end = at_ + 1;  // the end of the code point, which may be repeated
    while (end < pattern_.size() && (static_cast<unsigned char>(pattern_[end]) & 0xC0) == 0x80) ++end;
    atom(std::string(pattern_.substr(at_, end - at_)));
    at_ = end;
  }
  static char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
  bool caseless() const { return !groups_.empty() && groups_.back().caseless; }

  // Writes an escape as PCRE2 needs it, inside or outside a class; at_ goes past it.
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
        return set(members(*find_unicode_class("Nd")));
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

  // Reads \p{L}, \p{^L}, \P{L}: general categories and scripts.
  std::string property(bool in_class, bool negated) {
    if (caseless()) refuse("\\p where case does not count");
    if (next() != '{') refuse("\\p without a name in braces");
    const std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) refuse("\\p without a name in braces");
    std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
    if (!name.empty() && name[0] == '^') negated = !negated, name.remove_prefix(1);
    const auto known = find_unicode_class(name);
    if (!known) refuse(fmt::format("the property {} (general categories and scripts are known)", name));
    if (known->ranges.empty()) refuse("a class without a code point");
    at_ = close + 1;
    if (in_class) return negated ? regex_ranges(complement(known->ranges)) : members(*known);
    return fmt::format("[{}{}]", negated ? "^" : "", members(*known));
  }

  // Writes ranges for the inside of a class. A library's property is faster than many ranges outside Latin-1, which has
  // a bitmap.
  static std::string members(const UnicodeClass& c) {
    static const bool widen = pcre2_has_unicode(14, 16);
    if (c.property.empty() || !widen) return regex_ranges(c.ranges);
    return fmt::format("{}\\p{{{}}}{}", regex_ranges(latin_1(c.ranges)), c.property,
                       regex_ranges(assigned_since_14(c.ranges)));
  }

  // Reads \xHH, \x{H...}, \uHHHH.
  std::string code_point(bool four_digits) {
    if (caseless()) refuse("\\x or \\u where case does not count");
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
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      if (caseless()) refuse("a negated class where case does not count");
      text += '^', ++at_;
    }
    if (at_ < pattern_.size() && pattern_[at_] == ']') refuse("an empty class");
    const std::size_t first = at_, empty = text.size();
    while (at_ < pattern_.size() && pattern_[at_] != ']') text += class_item(first);
    if (at_ >= pattern_.size()) refuse("an unterminated class");
    if (text.size() == empty) refuse("an empty class");
    ++at_;
    return text + ']';
  }

  // Reads one character of a class, which may be an end of a range, or a set.
  std::string class_item(std::size_t first) {
    const char c = pattern_[at_];
    if (c == '[') refuse("a class within a class");
    if (c == '&' && pattern_.substr(at_, 2) == "&&") refuse("an intersection of classes");
    if (caseless() && static_cast<unsigned char>(c) >= 0x80) refuse("this letter where case does not count");
    if (c == '-' && at_ > first && set_at(at_ + 1)) refuse("a range that ends in a set");
    if (c != '\\') return ++at_, std::string(1, c);
    const bool set = set_at(at_);
    std::string text = escape(true);
    if (set && pattern_.substr(at_, 1) == "-" && pattern_.substr(at_, 2) != "-]")
      refuse("a range that begins in a set");
    return text;
  }
  bool set_at(std::size_t at) const {
    return at + 1 < pattern_.size() && pattern_[at] == '\\' &&
           std::string_view("sSdpP").find(pattern_[at + 1]) != std::string_view::npos;
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
    groups_.push_back({out_.size(), head == "(?i:" || (head != "(?-i:" && caseless())});
    out_ += head;
    at_ += head.size();
    atom_.reset();
  }

  void close_group() {
    if (groups_.empty()) refuse("an unmatched end of a group");
    atom_ = groups_.back().begin;
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
  std::optional<std::size_t> atom_;  // the place in out_ where the last atom begins
  struct Group {
    std::size_t begin;  // in out_
    bool caseless;
  };
  std::vector<Group> groups_;  // the open ones
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& where) { return Translator(pattern, where).run(); }

}  // namespace sestina

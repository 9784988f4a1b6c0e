#include "io/tokenizer/pretokenize.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  int bytes = 0;
  return is_word(code_point_at(text, at, &bytes));
}

bool word_after(std::string_view text, std::size_t at) {
  int bytes = 0;
  return at < text.size() && is_word(code_point_at(text, at, &bytes));
}

// Returns where the white space that ends at `at` begins, not before `floor`.
std::size_t space_begin(std::string_view text, std::size_t at, std::size_t floor) {
  while (at > floor) {
    std::size_t previous = at - 1;
    while (previous > 0 && (static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80) --previous;
    int bytes = 0;
    if (!is_space(code_point_at(text, previous, &bytes))) break;
    at = previous;
  }
  return std::max(at, floor);
}

std::size_t space_end(std::string_view text, std::size_t at) {
  int bytes = 0;
  while (at < text.size() && is_space(code_point_at(text, at, &bytes))) at += bytes;
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::int32_t node = 0;
    for (char byte : tokens_[t].content) {
      std::int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<std::int32_t>(nodes_.size());
        nodes_.push_back({-1, nodes_[node].child, -1, byte});
        nodes_[node].child = next;
      }
      node = next;
    }
    nodes_[node].token = static_cast<std::int32_t>(t);
  }
  for (int byte = 0; byte < 256; ++byte) start_[byte] = child(0, static_cast<char>(byte));
}

std::int32_t AddedTokens::child(std::int32_t node, char byte) const {
  std::int32_t next = nodes_[node].child;
  while (next >= 0 && nodes_[next].byte != byte) next = nodes_[next].sibling;
  return next;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  const AddedToken* longest = nullptr;
  std::int32_t node = start_[static_cast<unsigned char>(text[at])];
  while (node >= 0) {
    if (nodes_[node].token >= 0) longest = &tokens_[nodes_[node].token];
    node = ++at < text.size() ? child(node, text[at]) : -1;
  }
  return longest;
}

// Finds the next token that its flags allow, with the space that it takes.
bool AddedTokens::find(Scan& scan, AddedSplit& found) const {
  const std::string_view text = scan.text;
  for (std::size_t at = scan.at; at < text.size();) {
    if (start_[static_cast<unsigned char>(text[at])] < 0) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = begin + token->content.size();
    at = scan.at = end;
    if (token->single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token->lstrip) begin = std::max(space_begin(text, begin, std::min(scan.done, begin)), scan.done);
    if (token->rstrip) end = space_end(text, end);
    if (begin >= end) continue;  // white space itself, taken by the token before it
    found = {token->id, text.substr(begin, end - begin)};
    return true;
  }
  return false;
}

bool AddedTokens::next(Scan& scan, AddedSplit& split) const {
  if (scan.waiting.id >= 0) {
    split = std::exchange(scan.waiting, {-1, {}});
    return true;
  }
  AddedSplit token;
  const bool found = !empty() && find(scan, token);
  const std::size_t begin = found ? static_cast<std::size_t>(token.text.data() - scan.text.data()) : scan.text.size();
  const std::size_t before = scan.done;
  if (found) scan.done = begin + token.text.size();
  if (before < begin) {
    if (found) scan.waiting = token;
    if (!found) scan.at = scan.done = begin;
    split = {-1, scan.text.substr(before, begin - before)};
    return true;
  }
  if (found) split = token;
  return found;
}

void AddedTokens::split(std::string_view text, std::vector<AddedSplit>& splits) const {
  Scan scan{text};
  for (AddedSplit split; next(scan, split);) splits.push_back(split);
}

// A cut lies between a line feed and an ASCII letter. Both are starters, and neither composes with what comes before
// it, so NFC of the whole is NFC of the two sides (Unicode Standard Annex 15, section 9.1). A token without a line feed
// matches on one side only, and the search, which restarts after each match, stands at the line feed in both cases;
// single_word sees the line feed or an end, which are equal. lstrip could reach over the cut to the left. rstrip could
// eat up to the cut, and what follows would then begin a stretch, which matters where that gets a prefix space.
bool sections_cuttable(bool nfc, const std::vector<AddedToken>& tokens, bool pieces_cuttable, bool prefix_space) {
  const auto in_the_way = [&](const AddedToken& token) {
    return token.content.find('\n') != std::string::npos || token.lstrip || (token.rstrip && prefix_space);
  };
  return pieces_cuttable && !(nfc && std::any_of(tokens.begin(), tokens.end(), in_the_way));
}

SectionReader::SectionReader(const SectionRules& rules, std::string_view text, std::size_t longest)
    : rules_(rules), longest_(longest), raw_{text}, inner_{{}} {}

// Gives the next added token, or text between two.
bool SectionReader::next_stretch(AddedSplit& split) {
  while (!rules_.normalized.next(inner_, split)) {
    if (!rules_.raw.next(raw_, split)) return false;
    if (split.id >= 0 || rules_.nfc) return true;
    inner_ = {split.text};
  }
  return true;
}

bool SectionReader::next(TextSection& section) {
  if (rest_.empty()) {
    AddedSplit split;
    if (!next_stretch(split)) return false;
    section = {split.id, split.text, true};
    if (split.id >= 0 || split.text.size() <= longest_ || !rules_.cuttable) return true;
    rest_ = split.text;
    begins_ = true;
  }
  const std::size_t cut = rest_.size() > longest_ ? next_cut(rest_, longest_) : rest_.size();
  section = {-1, rest_.substr(0, cut), begins_};
  rest_.remove_prefix(cut);
  begins_ = false;
  return true;
}

namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Calls piece(text, is_match) for the matches and what lies between them, in order, empty ones left out. An empty match
// only separates; one right after the match before it does not count.
template <class Piece>
void for_each_match(const Pattern& pattern, std::string_view text, Pattern::Match& match, Piece piece) {
  std::size_t done = 0, from = 0, last_end = std::string_view::npos;
  while (from <= text.size() && pattern.find(text, from, match)) {
    const std::size_t begin = match.begin(), end = match.end();
    if (begin == end) {
      int bytes = 1;
      if (end < text.size()) code_point_at(text, end, &bytes);
      from = end + bytes;
      if (begin == last_end) continue;
    } else {
      from = end;
    }
    if (done < begin) piece(text.substr(done, begin - done), false);
    if (begin < end) piece(text.substr(begin, end - begin), true);
    done = last_end = end;
  }
  if (done < text.size()) piece(text.substr(done), false);
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreStep> steps) : steps_(std::move(steps)) {
  const auto passes_over = [](const PreStep& step) { return step.at_cut == PreStep::AtCut::passes_over; };
  // Steps after the one that ends a piece work on equal pieces.
  const auto step = std::find_if_not(steps_.begin() + (prefix_space() ? 1 : 0), steps_.end(), passes_over);
  cuttable_ = step != steps_.end() && step->at_cut == PreStep::AtCut::ends_pieces;
}

void PreTokenizer::run(std::size_t at, std::string_view text, Pattern::Match& match, const Sink& sink) const {
  if (text.empty()) return;
  if (at == steps_.size()) return sink(text);
  const PreStep& step = steps_[at];
  if (step.kind == PreStep::Kind::prefix_space) {
    if (text[0] == ' ') return run(at + 1, text, match, sink);
    return run(at + 1, std::string(1, ' ').append(text), match, sink);
  }
  for_each_match(step.pattern[0], text, match, [&](std::string_view piece, bool matched) {
    if (step.removed && matched != step.invert) return;
    if (at + 1 == steps_.size()) return sink(piece);
    run(at + 1, piece, match, sink);
  });
}

std::size_t next_cut(std::string_view text, std::size_t from) {
  for (std::size_t at = from; at < text.size(); ++at) {
    at = text.find('\n', at);
    if (at == std::string_view::npos || at + 1 >= text.size()) break;
    const bool printable = at > 0 && text[at - 1] > ' ' && text[at - 1] < 0x7F;
    if (printable && is_ascii_letter(text[at + 1]) && at + 1 >= from) return at + 1;
  }
  return text.size();
}

PreStep::AtCut at_cut(std::string_view pattern) {
  // GPT-2; Llama-3, OLMo-2 and GPT-4; Qwen; then GPT-4 with possessive quantifiers, GPT-4o and Llama-4, Qwen-3.5, the
  // last of DeepSeek-V3's three.
  static const std::string_view kEnd[] = {
      kGpt2Pattern,
      kLlama3Pattern,
      kQwenPattern,
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
      R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
      R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};
  static const std::string_view kPass[] = {R"(\p{N})",   R"(\p{N}+)", R"(\p{N}{1,3})", R"(\d)",
                                           R"(\d{1,3})", "[0-9]",     "[0-9]+",        "[一-龥぀-ゟ゠-ヿ]+"};
  if (std::find(std::begin(kEnd), std::end(kEnd), pattern) != std::end(kEnd)) return PreStep::AtCut::ends_pieces;
  if (std::find(std::begin(kPass), std::end(kPass), pattern) != std::end(kPass)) return PreStep::AtCut::passes_over;
  return PreStep::AtCut::unknown;
}

PreStep prefix_space_step() {
  PreStep step;
  step.kind = PreStep::Kind::prefix_space;
  return step;
}

PreStep split_step(Pattern pattern, bool removed, bool invert, PreStep::AtCut at_cut) {
  PreStep step;
  step.pattern.push_back(std::move(pattern));
  step.removed = removed;
  step.invert = invert;
  step.at_cut = at_cut;
  return step;
}

std::string_view pattern_named(std::string_view name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen") return kQwenPattern;
  fail(ExitCode::usage, "tokenizer pattern \"{}\": gpt2, llama3 or qwen", name);
}

}  // namespace sestina

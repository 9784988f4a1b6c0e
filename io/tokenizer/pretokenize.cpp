#include "io/tokenizer/pretokenize.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
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
  // What comes after the step that ends a piece works on equal pieces.
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

#include "io/tokenizer/pretokenize.hpp"

#include <utility>

#include "io/tokenizer/tokenizer_text.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Calls piece(text, is_match) for the matches and what lies between them, in order, empty ones left out. An empty match
// only separates; one right behind the match before it does not count.
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

PreTokenizer::PreTokenizer(std::vector<PreStep> steps, bool cuttable) : steps_(std::move(steps)), cuttable_(cuttable) {}

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

PreStep prefix_space_step() {
  PreStep step;
  step.kind = PreStep::Kind::prefix_space;
  return step;
}

PreStep split_step(Pattern pattern, bool removed, bool invert) {
  PreStep step;
  step.pattern.push_back(std::move(pattern));
  step.removed = removed;
  step.invert = invert;
  return step;
}

std::string_view pattern_named(std::string_view name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  if (name == "qwen") return kQwenPattern;
  fail(ExitCode::usage, "tokenizer pattern \"{}\": gpt2, llama3 or qwen", name);
}

}  // namespace sestina

#include "io/tokenizer/tokenizer_added.hpp"

#include <algorithm>
#include <utility>

#include "io/tokenizer/tokenizer_text.hpp"

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

// Where the white space that ends at `at` begins, not before `floor`.
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

// The next token that its flags let pass, with the space that it takes.
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

}  // namespace sestina

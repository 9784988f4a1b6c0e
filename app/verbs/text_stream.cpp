#include "app/verbs/text_stream.hpp"

#include <algorithm>
#include <string_view>

namespace sestina {
namespace {

// Length of the longest end of `text` that is the beginning of `stop`, but not all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
  std::size_t n = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, n))) --n;  // ends at 0 at the latest
  return n;
}

}  // namespace

std::vector<std::int32_t> Codec::encode(const std::string& text) const {
  if (tokenizer) return tokenizer->encode(text);
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string Codec::decode(const std::vector<std::int32_t>& ids) const {
  if (tokenizer) return tokenizer->decode(ids.data(), ids.size(), true);
  std::string text;
  for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
  return text;
}

std::string TextStream::push(std::int32_t id) {
  constexpr std::size_t longest_character = 4;  // bytes, so tokens too; what is longer is no character
  if (stopped_) return "";
  pending_.push_back(id);
  const std::string piece = codec_->decode(pending_);
  if (piece.ends_with("\xef\xbf\xbd") && pending_.size() < longest_character) return "";
  pending_.clear();
  held_ += piece;
  std::size_t end = std::string::npos, back = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    back = std::max(back, begun(held_, stop));
  }
  stopped_ = end != std::string::npos;
  const std::size_t certain = stopped_ ? end : held_.size() - back;
  std::string out = held_.substr(0, certain);
  held_.erase(0, stopped_ ? std::string::npos : certain);
  return out;
}

std::string TextStream::finish() {
  std::string rest = stopped_ ? "" : held_ + codec_->decode(pending_);
  held_.clear();
  pending_.clear();
  return rest;
}

}  // namespace sestina

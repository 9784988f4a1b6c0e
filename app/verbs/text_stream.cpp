#include "app/verbs/text_stream.hpp"

#include <algorithm>
#include <string_view>

#include "io/tokenizer/tokenizer_text.hpp"

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

std::string Codec::decode_bytes(const std::vector<std::int32_t>& ids) const {
  if (tokenizer) return tokenizer->decode_bytes(ids.data(), ids.size(), true);
  std::string text;
  for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
  return text;
}

std::string Codec::decode(const std::vector<std::int32_t>& ids) const { return repair_utf8(decode_bytes(ids)); }

std::vector<std::int32_t> Codec::unknown_ids(std::int64_t vocabulary) const {
  constexpr std::int64_t bytes = 256;
  std::vector<std::int32_t> ids;
  for (std::int64_t id = 0; id < vocabulary; ++id)
    if (tokenizer ? !tokenizer->has(id) : id >= bytes) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

std::string TextStream::push(std::int32_t id) {
  if (stopped_) return "";
  pending_ += codec_->decode_bytes({id});
  const std::size_t whole = pending_.size() - unfinished_utf8(pending_);
  held_ += repair_utf8(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
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
  std::string rest = stopped_ ? "" : held_ + repair_utf8(pending_);
  held_.clear();
  pending_.clear();
  return rest;
}

}  // namespace sestina

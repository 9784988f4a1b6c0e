// From tokens to text while they come: a character may span tokens, a stop string too. No Kokkos.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

// Ids both ways: a tokenizer, or bytes when there is none.
struct Codec {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode_bytes(const std::vector<std::int32_t>& ids) const;  // without special tokens
  std::string decode(const std::vector<std::int32_t>& ids) const;        // what is no UTF-8 becomes U+FFFD
  std::vector<std::int32_t> unknown_ids(std::int64_t vocabulary) const;  // of a model: those that stand for no token
};

class TextStream {
 public:
  // The codec must outlive the stream. Text ends before the first stop string, none of which is empty.
  TextStream(const Codec& codec, const std::vector<std::string>& stops) : codec_(&codec), stops_(stops) {}

  // The text that is certain now: whole characters that no stop string can begin with any more. Bytes that are part of
  // no character become U+FFFD, as in the text as a whole (repair_utf8).
  std::string push(std::int32_t id);
  std::string finish();  // what was held back
  bool stopped() const { return stopped_; }

 private:
  const Codec* codec_;
  std::vector<std::string> stops_;
  std::string pending_;  // bytes of an unfinished character
  std::string held_;     // may begin a stop string
  bool stopped_ = false;
};

}  // namespace sestina

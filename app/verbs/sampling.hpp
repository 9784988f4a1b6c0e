// The way from logits to text: draws the next token, and makes text of tokens while they come. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

// The next token is drawn from logits: after a repetition penalty it is the most likely one, or a draw from those that
// the filters leave. It is a pure function of the logits, the context and a number u.
struct Sampling {
  double temperature = 0.8;       // 0: the most likely token
  int top_k = 0;                  // the k most likely tokens and their equals, 0: all
  double top_p = 1;               // of these the most likely ones that hold this share of the probability; 1: all,
                                  // 0: the most likely one
  double repetition_penalty = 1;  // divides the positive logits of tokens in the context, multiplies negative ones
                                  // (Keskar et al. 2019)
};

class Sampler {
 public:
  // hidden: tokens that are never picked; at least one token must be left. No later call allocates.
  explicit Sampler(std::int64_t vocabulary, std::vector<std::int32_t> hidden = {});

  // Picks a token. logits (V) over the vocabulary; context: tokens so far, prompt included; u in [0, 1) picks among the
  // tokens that are left, in the order of their numbers. Filters apply in the order top_k, top_p.
  std::int32_t pick(const float* logits, const Sampling&, const std::vector<std::int32_t>& context, double u);

 private:
  void penalise(double penalty, const std::vector<std::int32_t>& context);
  float top_k_threshold(int k);
  void keep_share(double share, double total);

  std::vector<std::int32_t> hidden_;
  std::vector<float> scores_;  // logits, then weights
  std::vector<float> sorted_;
  std::vector<std::int32_t> order_;
  std::vector<bool> seen_;
};

// Text is made of tokens while they come: a character may span tokens, and so may a stop string.

// Encodes and decodes ids with a tokenizer, or as bytes when there is none.
struct Codec {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> encode(const std::string& text) const;
  std::string decode_bytes(const std::vector<std::int32_t>& ids) const;  // without special tokens
  std::string decode(const std::vector<std::int32_t>& ids) const;        // what is no UTF-8 becomes U+FFFD
  std::vector<std::int32_t> unknown_ids(std::int64_t vocabulary) const;  // ids of a model that stand for no token
};

class TextStream {
 public:
  // The codec must outlive the stream. The text ends before the first stop string; no stop string is empty.
  TextStream(const Codec& codec, const std::vector<std::string>& stops) : codec_(&codec), stops_(stops) {}

  // Returns the text that is certain now: whole characters that no stop string can begin with any more. Bytes that are
  // part of no character become U+FFFD, as in the text as a whole (repair_utf8).
  std::string push(std::int32_t id);
  std::string finish();  // returns what was held back
  bool stopped() const { return stopped_; }

 private:
  const Codec* codec_;
  std::vector<std::string> stops_;
  std::string pending_;  // bytes of an unfinished character
  std::string held_;     // text that may begin a stop string
  bool stopped_ = false;
};

}  // namespace sestina

// Samples text from a model: all prompts together, one token of each at a time, from a cache of keys and values
// (core/decoder.hpp). A token is a pure function of (model, prompt, seed, sample, number of the token); it depends
// neither on other prompts nor on how many there are.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "app/verbs/sampling.hpp"
#include "core/token_decoder.hpp"

namespace sestina {

struct Generation {
  Sampling sampling;
  int tokens = 128;  // the most that are added to each prompt
  std::uint64_t seed = 1;
  std::vector<std::int64_t> ends;    // a sequence ends at each of these tokens
  std::vector<std::int32_t> hidden;  // tokens that are never drawn
};

// The reason why a sequence ended: all tokens made, one of the end tokens, a stop string (emit said so), or the last
// position that the model knows.
enum class Finish { length, end, stop, context };
const char* name(Finish);

struct Sequence {
  std::vector<std::int32_t> ids;  // the prompt, not empty; then what was added
  int sample = 0;                 // samples of one prompt differ in their draws
  Finish finish = Finish::length;
};

struct GenerationTimes {
  double prompt_s = 0, tokens_s = 0;               // reading the prompts; making tokens
  std::int64_t prompt_tokens = 0, new_tokens = 0;  // those of all sequences
};

// Returns the positions that a decoder for these sequences needs; throws Error(bad_data) when a prompt is longer than
// max_position_embeddings.
int decoder_capacity(const ModelConfig&, const std::vector<Sequence>&, int tokens);

// Generates tokens. Each new token is given to emit(sequence, token) as it comes; the sequence ends when that returns
// false. As many sequences run at a time as the decoder has. Neighbours with the same prompt share the work of reading
// it.
GenerationTimes generate(TokenDecoder&, const Generation&, std::vector<Sequence>&,
                         const std::function<bool(std::size_t, std::int32_t)>& emit);

}  // namespace sestina

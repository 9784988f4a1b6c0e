// Sampling text from a model: prompts side by side, one token each at a time, from a cache of keys and values
// (core/decoder.hpp). A token is a pure function of (model, prompt, seed, sample, number of the token): neither
// of other prompts nor of how many there are.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "app/verbs/sampling.hpp"
#include "core/token_decoder.hpp"

namespace sestina {

struct Generation {
  Sampling sampling;
  int tokens = 128;  // added to each prompt at most
  std::uint64_t seed = 1;
  std::vector<std::int64_t> ends;    // a sequence ends at each of these tokens
  std::vector<std::int32_t> hidden;  // tokens that are never drawn
};

// Why a sequence ended: all tokens made, one of the end tokens, a stop string (emit said so), or the last
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
  std::int64_t prompt_tokens = 0, new_tokens = 0;  // of all sequences
};

// Positions that a decoder for these needs: Error(bad_data) when a prompt is longer than max_position_embeddings.
int decoder_capacity(const ModelConfig&, const std::vector<Sequence>&, int tokens);

// Each new token is given to emit(sequence, token) as it comes; the sequence ends when that returns false. Takes as
// many sequences at a time as the decoder has. Neighbours with the same prompt share the work of reading it.
GenerationTimes generate(TokenDecoder&, const Generation&, std::vector<Sequence>&,
                         const std::function<bool(std::size_t, std::int32_t)>& emit);

}  // namespace sestina

// The tokens that begin and end texts, from all the places that name them: the one answer for `generate`, `eval`,
// training, `data tokenize` and export. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/deck/model_config.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

struct SpecialTokens {
  // end is put between documents; a generation stops at each of ends. -1, empty: none.
  std::int64_t begin = -1, end = -1, pad = -1;
  std::vector<std::int64_t> ends;
  std::vector<std::int32_t> prefix;  // before every text that a model is asked about, from the post_processor
  std::string begin_source, end_source, ends_source, pad_source;  // for messages: "FILE: key", "data.end_token", a name

  bool stops_at(std::int64_t id) const;
  // What a text without tokens starts from: the prefix, else begin, else end; may be empty.
  std::vector<std::int32_t> start() const;
};

// Where to look. All may be empty, as far as there is such a thing.
struct TokenSources {
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_path = {};     // tokenizer.json; what Hugging Face keeps next to it belongs to it
  std::string folder = {};             // of the model: config.json, generation_config.json; "": the tokenizer's
  const ModelConfig* model = nullptr;  // its vocabulary, and its ids where there is no config.json
  std::string begin_token = {}, end_token = {};  // data.begin_token, data.end_token of the deck
};

// First of these that names a token which the tokenizer has, as transformers looks for them:
//   end: the deck, special_tokens_map.json, tokenizer_config.json, config.json (the first of its list),
//        generation_config.json, a known name in the tokenizer, the model;
//   ends: the deck and generation_config.json, else config.json, else end, else what the model's class has for an end;
//   begin: as end, without known names;   pad: in the same way, without the deck.
// tokenizer_config.json comes before special_tokens_map.json when it has "added_tokens_decoder". transformers does not
// look at add_bos_token and add_eos_token next to a tokenizer.json, so neither does this. Error(bad_deck) when the deck
// names a token that is not there, Error(bad_data) on a file that is no JSON object.
SpecialTokens find_special_tokens(const TokenSources&);

// "" or why documents get no end token, and what helps.
std::string missing_end(const SpecialTokens&, const TokenSources&);

}  // namespace sestina

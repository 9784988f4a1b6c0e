// tokenizer.json taken apart and checked. No Kokkos.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/pretokenize.hpp"
#include "io/tokenizer/tokenizer_added.hpp"

namespace sestina {

struct TokenizerDescription {
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  BpeDescription model;
  std::vector<AddedToken> added;  // with their ids
};

// Reads byte-level BPE files only. truncation, padding and post_processor are not applied and not read: they concern
// what is put around a text, not its ids. Error(bad_data) with `where` and the part that is damaged or not supported.
TokenizerDescription parse_tokenizer_json(std::string_view json, const std::string& where);

}  // namespace sestina

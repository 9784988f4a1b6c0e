// Takes tokenizer.json apart and checks it. No Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/bpe_model.hpp"
#include "io/tokenizer/pretokenize.hpp"

namespace sestina {

struct TokenizerDescription {
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  BpeDescription model;
  std::vector<AddedToken> added;     // with their ids
  std::vector<std::int32_t> prefix;  // ids that the post_processor puts before a text
};

// Reads byte-level BPE files only. truncation and padding are not read; of the post_processor only what it puts before
// a text is read, which changes no id of the text. Error(bad_data) with `where` and the part that is damaged or not
// supported.
TokenizerDescription parse_tokenizer_json(std::string_view json, const std::string& where);

// The post_processor of a tokenizer.json says what stands before a text.

// Returns the ids that stand before a single text: TemplateProcessing ("<s> $A"), RobertaProcessing and BertProcessing,
// alone or in a Sequence, whose later members add theirs in front; ByteLevel and null add none. Tokens after the text
// are for pairs and for training, and are ignored. Error(bad_data) with `where` on other kinds and damage.
std::vector<std::int32_t> post_processor_prefix(const nlohmann::json& post_processor, const std::string& where);

}  // namespace sestina

// Files that lie next to the weights in a Hugging Face folder and belong to the model: its configurations, its
// tokenizer, its chat template. A run keeps these files byte for byte in its checkpoints, so that it needs the folder
// only once. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/model_config.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

struct CompanionFile {
  std::string name, bytes;
};
inline constexpr const char* kCompanionFolder = "hf";  // in a checkpoint that carries some

// Returns the folder that holds these files, under the names that they had: that of the checkpoint where it carries
// them, else `hf` itself, which is the folder of --hf or of model.from_hf. "" when there is neither. `checkpoint` may
// be "".
std::string hf_companion_folder(const std::string& checkpoint, const std::string& hf);

// Reads those files that are in a folder, for CheckpointWriter::carry. Error(input_missing) when one cannot be read.
std::vector<CompanionFile> read_hf_companions(const std::string& folder);

// Writes the files as they are into a folder that write_hf_model has written, in place of those that it made. Of
// config.json, which says how the weights lie in the folder now, only the token ids are taken over.
void write_hf_companions(const std::string& folder, const std::vector<CompanionFile>&);

// True for a file of the tokenizer, which is replaced with it.
bool is_tokenizer_file(const std::string& name);

// transformers needs these files next to the weights to encode text and to end a generation.

// Copies tokenizer.json and its companions (its configuration, special tokens, chat template) into the folder.
void copy_tokenizer(const std::string& tokenizer, const std::string& folder);

// Sets the ids of begin, end and padding that config does not name, and those that the deck names on purpose. Where
// there is no begin token, a text begins with the end token of the text before.
void name_special_tokens(const TokenSources&, ModelConfig& config);

// Copies the tokenizer, writes a tokenizer_config.json where there is none, and names the special tokens.
void write_hf_tokenizer(const std::string& folder, const std::string& tokenizer, ModelConfig& config);

std::string generation_json(const ModelConfig&);  // generation_config.json

}  // namespace sestina

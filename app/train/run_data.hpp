// The data of a run: the tokenizer and the samples of a split, opened and checked, and the files of a Hugging Face
// folder that the run keeps. No Kokkos.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "core/deck/options.hpp"
#include "io/hf/hf_companions.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/data_loader.hpp"

namespace sestina {

// A run keeps files of a Hugging Face folder in its checkpoints: once the first checkpoint is there, nothing of the run
// depends on the folder.

// True where the checkpoint's deck holds the sizes of such a folder, and the checkpoint carries the files. checkpoint
// may be "".
bool holds_hf_model(const std::string& checkpoint);

// Completes options that were read from the deck of such a checkpoint with what the deck does not say: the token ids of
// its config.json, and its tokenizer, unless the command line names one or the run reads bytes. For other checkpoints
// it does nothing.
void take_companions(Options&, const DeckArguments&, const std::string& checkpoint);

// Returns the files that a run that starts from the checkpoint, or freshly from model.from_hf, is to carry. A tokenizer
// from elsewhere takes the place of the folder's.
std::vector<CompanionFile> companions_of(const Options&, const std::string& checkpoint);

// The data of a deck are opened and checked: tokenizer and samples of a split.

// Opens the deck's tokenizer; null when it names none (text is read as bytes). One that came along with a model and is
// of a kind that is not read is left out, with a warning, when no source is text.
std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions&);

// Bytes are 256 tokens. Returns "" when that is the model's vocabulary or no bytes are read unasked, else what is wrong
// and what helps. needed: text is read for sure (a prompt), whatever the sources are.
std::string byte_text_defect(const Options&, bool needed = false);
// Throws Error(bad_data) with that text.
void require_byte_vocabulary(const Options&, bool needed = false);

// Finds the special tokens. tokenizer: null, or read from tokenizer_path. folder: hf_companion_folder().
SpecialTokens special_tokens(const Options&, const Tokenizer*, const std::string& tokenizer_path,
                             const std::string& folder);

// The use of texts: documents to learn from are their own tokens and the end token; texts that a model is asked about
// also have the tokenizer's prefix before them, as in transformers.
enum class TextUse { learn, ask };
// Opens the samples of a split. Ids are checked against the model's vocabulary; the end token marks documents where a
// format does not. Warns when documents that are tokenised get none. poll: see open_source().
SampleSet open_samples(const Options&, Split, const Tokenizer*, const Poll& poll = {}, TextUse use = TextUse::learn);

// True when the deck holds data back for evaluation.
bool has_validation(const DataOptions&);

}  // namespace sestina

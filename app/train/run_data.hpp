// The data of a deck, opened and checked: tokenizer and samples of a split. No Kokkos.
#pragma once
#include <memory>
#include <string>

#include "io/tokenizer/special_tokens.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/data_loader.hpp"

namespace sestina {

// The deck's tokenizer, null when it names none (text is read as bytes). One that came along with a model and is of a
// kind that is not read is left out, with a warning, when no source is text.
std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions&);

// Bytes are 256 tokens. "" when that is the model's vocabulary or nobody reads bytes unasked, else what is wrong and
// what helps. needed: text is read for sure (a prompt), whatever the sources are.
std::string byte_text_defect(const Options&, bool needed = false);
// Error(bad_data) with that text.
void require_byte_vocabulary(const Options&, bool needed = false);

// tokenizer, null none: read from tokenizer_path. folder: hf_companion_folder().
SpecialTokens special_tokens(const Options&, const Tokenizer*, const std::string& tokenizer_path,
                             const std::string& folder);

// Documents that are learnt from are their own tokens and the end token; texts that a model is asked about also have
// the tokenizer's prefix before them, as transformers has it.
enum class TextUse { learn, ask };
// Ids are checked against the model's vocabulary; the end token marks documents where a format does not. Warns when
// documents that are tokenised get none. poll: see open_source().
SampleSet open_samples(const Options&, Split, const Tokenizer*, const Poll& poll = {}, TextUse use = TextUse::learn);

// True when the deck holds data back for evaluation.
bool has_validation(const DataOptions&);

}  // namespace sestina

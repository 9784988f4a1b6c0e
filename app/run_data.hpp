// The data of a deck, opened and checked: tokenizer and samples of a split. No Kokkos.
#pragma once
#include <memory>

#include "io/data_loader.hpp"
#include "io/tokenizer.hpp"

namespace sestina {

// The deck's tokenizer, null when it names none (text is read as bytes).
std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions&);

// Ids are checked against the model's vocabulary; its end-of-document id marks documents where a format does not.
SampleSet open_samples(const Options&, Split, const Tokenizer*);

// True when the deck holds data back for evaluation.
bool has_validation(const DataOptions&);

}  // namespace sestina

// The files of a Hugging Face folder that a run keeps in its checkpoints: once the first one is there, nothing of the
// run depends on the folder. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "core/deck/options.hpp"
#include "io/hf/hf_companions.hpp"

namespace sestina {

// Its deck holds the sizes of such a folder, and it carries the files. checkpoint may be "".
bool holds_hf_model(const std::string& checkpoint);

// Options that were read from the deck of such a checkpoint get what the deck does not say: the token ids of its
// config.json, and its tokenizer, unless the command line names one or the run reads bytes. Of other checkpoints
// nothing.
void take_companions(Options&, const DeckArguments&, const std::string& checkpoint);

// What a run that starts from the checkpoint, or freshly from model.from_hf, is to carry. A tokenizer from elsewhere
// takes the place of the folder's.
std::vector<CompanionFile> companions_of(const Options&, const std::string& checkpoint);

}  // namespace sestina

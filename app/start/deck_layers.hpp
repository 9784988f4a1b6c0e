// The deck of a verb from its layers: deck stored in a checkpoint < -i files < --hf < section.key=value. No Kokkos.
#pragma once
#include <string>

#include "app/command/verbs.hpp"
#include "core/deck/deck.hpp"

namespace sestina {

// stored: resolved deck of a checkpoint, "" none; stored_where names it in messages. Throws Error(usage) without any
// layer and Error(input_missing) when the file cannot be opened; other errors are collected in the deck.
Deck layered_deck(const DeckArguments&, const std::string& stored = "", const std::string& stored_where = "checkpoint");

// What the command line says, alone; none is no error.
Deck given_deck(const DeckArguments&);

}  // namespace sestina

// How the deck of a run is put together from its layers, and how the ranks that a launcher started lie on its grid. No
// Kokkos.
#pragma once
#include <string>

#include "app/command/verbs.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

// The layers of a verb's deck, by precedence: deck stored in a checkpoint < -i files < --hf < section.key=value. The
// section [sweep] is left out: it is for `sestina sweep` alone, which reads it from given_deck().

// Puts the layers together. stored: the resolved deck of a checkpoint, "" none; stored_where names it in messages.
// Throws Error(usage) without any layer and Error(input_missing) when the file cannot be opened; other errors are
// collected in the deck.
Deck layered_deck(const DeckArguments&, const std::string& stored = "", const std::string& stored_where = "checkpoint");

// Returns only what the command line says; an empty deck is no error.
Deck given_deck(const DeckArguments&);

// Reads the options of a run that trains; all errors are collected in the deck, whose finish() throws them.
Options read_trainable(Deck&);

// The ranks that a launcher started are laid on the dp x tp x pp of a deck.

// Returns run.start_timeout as far as it is known before the ranks meet; errors in the deck are told later.
double find_start_timeout(const DeckArguments&);

// For training: sets parallel.dp where neither deck nor command line says it (the stored one of a checkpoint does not
// count) to all ranks that are left, or to one where there are pipeline stages, on which the ranks are laid.
void take_all_ranks(DeckArguments&, const std::string& stored, const std::string& stored_where, int ranks);

// For forward passes alone: takes parallel.tp and pp from the layers and as many pipeline ranks as there may be; the
// remaining factor of the ranks shares the data, whatever parallel.dp is. One process holds the whole model.
void take_forward_ranks(DeckArguments&, const std::string& stored, const std::string& stored_where, int ranks);

// For text, whose ranks are one tensor-parallel group: sets parallel.tp to their number and parallel.pp to 1, whatever
// the stored deck of a checkpoint says. Error(bad_deck) where the command line, or a deck of it, says another number.
void take_decoding_ranks(DeckArguments&, int ranks);

// Collects an error in the deck unless there are dp x tp x P ranks, where the P pipeline ranks divide the stages
// evenly.
void require_ranks(Deck&, const ParallelOptions&, int ranks);

}  // namespace sestina

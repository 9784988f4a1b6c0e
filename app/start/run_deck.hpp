// The deck of a run: from its layers, and as the ranks that a launcher started lie on its grid. No Kokkos.
#pragma once
#include <string>

#include "app/command/verbs.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

// The deck of a verb from its layers: deck stored in a checkpoint < -i files < --hf < section.key=value.

// stored: resolved deck of a checkpoint, "" none; stored_where names it in messages. Throws Error(usage) without any
// layer and Error(input_missing) when the file cannot be opened; other errors are collected in the deck.
Deck layered_deck(const DeckArguments&, const std::string& stored = "", const std::string& stored_where = "checkpoint");

// What the command line says, alone; none is no error.
Deck given_deck(const DeckArguments&);

// How the ranks that a launcher started lie on the dp x tp x pp of a deck.

// run.start_timeout as far as it is known before the ranks meet; what is wrong with the deck is told later.
double find_start_timeout(const DeckArguments&);

// Training: parallel.dp where neither deck nor command line says it (that of a checkpoint, stored, does not count): all
// ranks that are left; one where there are pipeline stages, on which the ranks are laid.
void take_all_ranks(DeckArguments&, const std::string& stored, const std::string& stored_where, int ranks);

// Forward passes alone: parallel.tp and pp as any layer says, as many pipeline ranks as there may be, and the rest
// reads its share of the data, whatever parallel.dp is. One process holds the whole model.
void take_forward_ranks(DeckArguments&, const std::string& stored, const std::string& stored_where, int ranks);

// Collects an error unless there are dp x tp x P ranks, where the P pipeline ranks divide the stages evenly.
void require_ranks(Deck&, const ParallelOptions&, int ranks);

}  // namespace sestina

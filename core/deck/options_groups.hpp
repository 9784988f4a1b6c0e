// Patterns of [[optimizer.group]] against the tensors of the model. No Kokkos.
#pragma once
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

// A pattern that fits no tensor of the whole model, or frozen ones alone, would change nothing: deck error with the
// names that are there, and the one that was meant.
void require_matching_groups(Deck&, const Options&);

}  // namespace sestina

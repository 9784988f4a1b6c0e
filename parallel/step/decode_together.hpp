// Text from a model whose parts lie on several ranks. The first rank generates as if it had the model to itself, and
// tells the others each call of its decoder, which they make too: what is drawn, how a text ends and what is printed is
// that rank's alone, so ranks cannot come apart. No Kokkos.
#pragma once
#include <functional>

#include "core/token_decoder.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// Calls generate(decoder) on the first rank; the others make the calls of that decoder with their own until generate
// returns or throws. own: made with the same options on each rank. ranks: those that decode together, in a group of
// which nothing else is under way. Steps allocate nothing.
void decode_together(TokenDecoder& own, Communicator& ranks, const std::function<void(TokenDecoder&)>& generate);

}  // namespace sestina

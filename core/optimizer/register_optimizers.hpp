// The matrix optimizers of this program. No Kokkos.
#pragma once

namespace sestina {

// Registers them (core/optimizer/base/register_kind.hpp), once however often it is called: at the start of a program,
// before decks are read.
void register_optimizers();

}  // namespace sestina

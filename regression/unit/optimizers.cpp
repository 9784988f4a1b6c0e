// Registers the optimizers before GoogleTest asks for their names, which it does as it starts.
#include "core/optimizer/register_optimizers.hpp"

namespace {

[[maybe_unused]] const bool registered = (sestina::register_optimizers(), true);

}  // namespace

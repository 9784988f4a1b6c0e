// Published sets of coefficients of Newton-Schulz iteration, known by name. A set says what happens when more or fewer
// steps are asked for than it has. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/optimizer/newton_schulz_step.hpp"

namespace sestina {

// Returns the names of the sets; the first is the default.
const std::vector<std::string>& newton_schulz_set_names();

// Returns the number of steps of a set that can be used with no other number.
std::optional<std::int64_t> only_newton_schulz_steps(std::string_view set);

// Returns `steps` steps of the set, 0: as many as it is usually run with. With more steps than entries a set whose last
// entry holds singular values at 1 repeats that one; the others start again. Throws Error(bad_deck) for cubic5, which
// is 5 steps and nothing else.
std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view set, std::int64_t steps);

}  // namespace sestina

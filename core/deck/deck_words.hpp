// Nearest words, for "did you mean". No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

std::size_t edit_distance(std::string_view a, std::string_view b);  // a swap of neighbours counts once
// The candidate nearest to the word, "" when none is near enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace sestina

// How rows are sharded over the ranks of a group. No Kokkos.
#pragma once
#include <cstdint>

namespace sestina {

// First row of a rank's part when `rows` rows are sharded evenly, in order.
inline std::int64_t first_row_of(std::int64_t rows, int size, int rank) { return rows * rank / size; }

}  // namespace sestina

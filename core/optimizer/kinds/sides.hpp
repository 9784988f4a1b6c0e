// Which sides of an m x n matrix a method treats (left acts on rows, right on columns), and the state of each. No
// Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

struct Sides {
  bool left = true, right = true;
};

// The shorter side alone: left when m < n, else right.
Sides shorter_side(std::int64_t rows, std::int64_t cols);
// Without those longer than max_dim.
Sides not_longer(Sides, std::int64_t max_dim, std::int64_t rows, std::int64_t cols);

// <name>_left (m, m) and <name>_right (n, n), of the sides there are.
void add_squares(std::vector<FieldSize>&, const std::string& name, Sides, std::int64_t rows, std::int64_t cols,
                 FieldUse = FieldUse::update);
// <name>_left (m) and <name>_right (n).
void add_vectors(std::vector<FieldSize>&, const std::string& name, Sides, std::int64_t rows, std::int64_t cols);
// Counters: updates made, whether the first call is over, refreshes failed in a row.
void add_counters(std::vector<FieldSize>&, Sides);

// Of asynchronous refreshes: the snapshot of each side, by its name and size, and by side the update of the one in
// flight (0: none) and 1 + that of the one that the result in use comes from (0: none). Nothing where refreshes are
// inline; a checkpoint may lack them.
void add_jobs(std::vector<FieldSize>&, const MatrixOptions&, const std::vector<FieldSize>& snapshots);
void add_jobs(std::vector<FieldSize>&, const MatrixOptions&, Sides, std::int64_t rows, std::int64_t cols);

// The sides that have a basis among these fields.
Sides sides_with_bases(const std::vector<FieldSize>&);

// Key momentum_basis of Adam in rotated bases (SOAP, basis rotation): the rotated momentum is kept beside the other
// one.
bool keeps_rotated_momentum(const MatrixOptions&);
// Of Adam in rotated bases: moments, factors where the bases follow them, bases, counters, jobs.
std::vector<FieldSize> rotated_fields(const MatrixOptions&, Sides, bool factors, std::int64_t rows, std::int64_t cols);

// What the kind of these options lists; what has no tier below host memory is always at hand.
std::vector<FieldSize> fields_of(const MatrixOptions&, std::size_t rows, std::size_t cols);

// Rank and side of a low-rank method: keys rank (0: a quarter of the shorter side) and side.
struct LowRank {
  std::int64_t rank = 1;
  bool right = true;  // projects rows of G: R (m, r) = G P^T with P (r, n); else R (r, n) = P^T G with P (m, r)
  std::size_t small_elements(std::size_t rows, std::size_t cols) const {  // of R
    return (right ? rows : cols) * static_cast<std::size_t>(rank);
  }
  std::size_t projector_elements(std::size_t rows, std::size_t cols) const {
    return (right ? cols : rows) * static_cast<std::size_t>(rank);
  }
};
// Elements of a projector in 8 or 4 bits that share a scale (kernels/model/group_quantise.hpp), as Q-GaLore has it.
inline constexpr std::size_t projector_group = 256;
inline constexpr std::int64_t lazy_window = 5;  // cosines of projectors that Q-GaLore looks back on
bool has_coded_projector(const MatrixOptions&);
LowRank low_rank_of(const MatrixOptions&, std::int64_t rows, std::int64_t cols);
// Its name, keys and defaults as GaLore and APOLLO share them. source: of the projector, where it is not given.
MatrixKind low_rank_kind(std::string name, double scale, std::vector<std::string> sources);
// projector (or its codes, with those of zero behind them, and scales), momentum, second_moment and counters; block: of
// moments in 8 bits.
std::vector<FieldSize> low_rank_fields(const MatrixOptions&, std::int64_t rows, std::int64_t cols,
                                       std::int64_t block = 0);

}  // namespace sestina

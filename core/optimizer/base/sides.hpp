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

// What the kind of these options lists, each with its tier.
std::vector<FieldSize> fields_of(const MatrixOptions&, std::size_t rows, std::size_t cols);

}  // namespace sestina

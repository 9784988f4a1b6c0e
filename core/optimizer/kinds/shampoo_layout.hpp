// How Shampoo cuts a matrix: blocks of at most max_dim x max_dim, each with its own factors. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

struct ShampooBlock {
  std::size_t row = 0, col = 0;    // of its corner
  std::size_t rows = 0, cols = 0;  // (bm, bn)
  std::string prefix;              // of its fields: "", or "block_<i>_<j>." when there are several
};

struct ShampooLayout {
  std::size_t rows = 0, cols = 0;  // of the matrix, or of the column vector that it is seen as
  bool is_vector = false;          // seen as a vector: a factor for the rows only, to the power -2 exponent
  std::vector<ShampooBlock> blocks;
};

ShampooLayout shampoo_layout(const MatrixOptions&, std::size_t rows, std::size_t cols);

// What a word of the key "graft" keeps besides the momentum.
inline bool graft_has_second_moment(const std::string& graft) { return graft != "none" && graft != "sgd"; }

}  // namespace sestina

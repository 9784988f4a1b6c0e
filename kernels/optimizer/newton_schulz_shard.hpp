// Newton-Schulz iteration (newton_schulz.hpp) of a matrix whose rows, or columns, are sharded over several ranks.
// Shards stay where they lie: the Gram matrix whose sum runs over the cut side, X^T X where rows are cut and X X^T
// where columns are, is the sum of the shards' own, and with it every rank takes the step of its shard (the
// "distributed" mode of NVIDIA's tensor-parallel Muon). Ranks exchange the norm and, for each step, one such matrix.
#pragma once
#include <functional>

#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

enum class CutSide { rows, cols };

// What is summed over the ranks, in place; the same bits for all of them.
template <class Space>
struct ShardSums {
  std::function<void(Vector<double, Space>)> norm;  // (1)
  std::function<void(Vector<float, Space>)> gram;   // (side * side), in float whatever the shards are stored as
};

// As newton_schulz, of the shard u (rows, cols) with the chunk sums of its own squares. counted: false where another
// rank holds the same shard and enters it into the sums. The result is the shard of the orthogonalised matrix, as it
// lies in the matrix: (rows, cols). All ranks must call it, those with an empty shard too.
template <class T, class Space>
Matrix<const T, Space> newton_schulz_shard(const Space&, Gemm<Space>&, Workspace<Space>&, const NewtonSchulz&,
                                           const Blend<Space>& u, std::size_t rows, std::size_t cols, CutSide,
                                           Vector<const double, Space> squares, bool counted, const ShardSums<Space>&);
// Scratch that it takes; the chunk sums are the caller's.
template <class T, class Space>
std::size_t newton_schulz_shard_workspace_bytes(std::size_t rows, std::size_t cols, CutSide);

}  // namespace sestina

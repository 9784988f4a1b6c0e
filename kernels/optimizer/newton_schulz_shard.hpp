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
// What it takes; the chunk sums are the caller's.
template <class T, class Space>
struct NewtonSchulzShardScratch {
  NewtonSchulzShardScratch(Workspace<Space>& workspace, std::size_t rows, std::size_t cols, CutSide cut) {
    const std::size_t side = cut == CutSide::rows ? cols : rows;
    x = workspace.template take<T>(rows, cols);
    y = workspace.template take<T>(rows, cols);
    whole = workspace.template take<float>(side, side);
    if constexpr (std::is_same_v<T, float>)
      gram = whole;
    else
      gram = workspace.template take<T>(side, side);
    square = workspace.template take<T>(side, side);
    inverse = workspace.template take<float>(1);
    total = workspace.template take<double>(1);
  }
  Matrix<T, Space> x, y, gram, square;  // gram as it is multiplied
  Matrix<float, Space> whole;           // gram as it is summed
  Vector<float, Space> inverse;
  Vector<double, Space> total;
};

}  // namespace sestina

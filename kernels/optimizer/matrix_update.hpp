// The last passes of matrix optimizers, from the direction to the weight: that of all of them, those of Muon and its
// relatives, and APOLLO's; and the flag that they raise where a weight is not finite. W is a matrix of weights (m, n),
// O an orthogonalised direction.
#pragma once
#include <functional>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/quantise.hpp"

namespace sestina {

// The flag that update kernels raise next to the weights they write. It is a double in the memory of the space, so that
// it travels with the sums of squares (core/optimizer/gradient_norm.hpp): no message and no host wait of its own.

// Sets *flag to 1 when one of n values is not finite. The values are those that the calling thread has just written,
// which still lie in its nearest cache. With a null flag nothing is checked.
template <class S>
KOKKOS_INLINE_FUNCTION void flag_nonfinite(std::size_t n, const S* values, double* flag) {
  if (flag == nullptr) return;
  int bad = 0;
  for (std::size_t i = 0; i < n; ++i) bad |= values[i] - values[i] != 0 ? 1 : 0;  // inf - inf is no number
  if (bad != 0) Kokkos::atomic_store(flag, 1.0);
}

// The last pass of every matrix optimizer: decay, the movement, and the rounded copy, reading everything once.
struct WeightMove {
  double lr = 0;     // learning rate of this matrix now; decay uses it unscaled
  double scale = 1;  // the movement is lr * scale * direction
  double weight_decay = 0;
  bool decay_first = true;      // W = (1 - lr wd) W - lr s U; false: W = (1 - lr wd) (W - lr s U)
  double* nonfinite = nullptr;  // the flag above
};

// The numbers of a move in the type of the arithmetic: w = after (before w - step u) for weight w, direction u.
struct MoveFactors {
  float before, step, after;
  double* nonfinite;
  KOKKOS_INLINE_FUNCTION explicit MoveFactors(const WeightMove& move)
      : before(move.decay_first ? static_cast<float>(1 - move.lr * move.weight_decay) : 1.0f),
        step(static_cast<float>(move.lr * move.scale)),
        after(move.decay_first ? 1.0f : static_cast<float>(1 - move.lr * move.weight_decay)),
        nonfinite(move.nonfinite) {}
};

// Moves n weights; weight may be null.
template <class TU>
KOKKOS_INLINE_FUNCTION void move_range(const MoveFactors& f, std::size_t n, const TU* __restrict direction,
                                       float* __restrict master, bf16* __restrict weight) {
  for (std::size_t i = 0; i < n; ++i)
    master[i] = f.after * (f.before * master[i] - f.step * static_cast<float>(direction[i]));
  flag_nonfinite(n, master, f.nonfinite);
  if (weight == nullptr) return;
  for (std::size_t i = 0; i < n; ++i) weight[i] = bf16(master[i]);
}

// Returns the elements of a matrix without padding.
template <class T, class Space>
Vector<T, Space> flat(Matrix<T, Space> x) {
  SESTINA_REQUIRE(x.extent(0) <= 1 || x.stride(0) == x.extent(1), "rows of {} lie {} apart", x.extent(1), x.stride(0));
  return Vector<T, Space>(x.data(), x.size());
}

// Moves master (n) along direction (n), float or bf16, and writes weight (n), the rounded master weight, or empty.
// factor (1), or (0), is a number that only the space knows, by which the movement is multiplied too.
template <class Space, class TU>
void move_weight(const Space&, const WeightMove&, Vector<const TU, Space> direction, Vector<float, Space> master,
                 Vector<bf16, Space> weight, Vector<const double, Space> factor = {});

// Factors of the columns or rows of a direction; empty: none.
template <class Space>
struct ChannelFactors {
  Vector<const float, Space> values;
  bool by_row = false;
};

// Returns a number of update t for the whole tensor, from which each of its elements draws by its place, whoever moves
// it.
std::uint64_t rounding_key(std::uint64_t stream, std::int64_t t);

// Moves weights in 8 bits by direction (m, n) times its factors, as the arithmetic of fp32 has it, and rounds up or
// down at random, so that small movements are kept in the mean (stochastic rounding, as in Q-GaLore, arXiv 2407.08296).
// The grid of a group follows its values (CodeGrid), but is kept while they fill it to 1/64: where nothing moves,
// nothing is rounded again. Rows of a slab draw as rows of a tensor of which they are the first ones.
template <class Space>
void move_coded(const Space&, const WeightMove&, Matrix<const float, Space> direction, const ChannelFactors<Space>&,
                const CodedRows&, std::uint64_t key);

// The last passes of Muon and of its relatives go from the orthogonalised direction O in wide form (matrix_passes.hpp)
// to the weight. NorMuon (Li et al. 2025) and AdaMuon (Si et al. 2025) divide O by the root of a running mean of its
// squares, the one by rows or columns, the other by element; then the Frobenius norm of O is given back to the
// direction.

// Moves W (m, n) along O in one pass over everything; weight (m, n), or (0, 0), receives the rounded copy.
template <class Space, class T>
void move_weight_wide(const Space&, const WeightMove&, Matrix<const T, Space> direction, Matrix<float, Space> master,
                      Matrix<bf16, Space> weight);

struct SecondMoment {
  double beta2 = 0.95;
  double eps = 1e-8;      // NorMuon: the least mean; AdaMuon: added to the root
  bool keep_norm = true;  // false: the published divisions alone
};

// What they move: a matrix, or the rows or columns of one that this rank has of it. Then O is cut in the same way, as
// it lies in the matrix, and what is a sum over all of O is summed over the ranks.
template <class Space>
struct MovedMatrix {
  Matrix<float, Space> master;     // (m, n)
  Matrix<bf16, Space> weight;      // (m, n), or (0, 0)
  std::size_t rows = 0, cols = 0;  // of the whole matrix
  bool counted = true;             // false: another rank has the same shard, and enters it into the sums
  const std::function<void(Vector<double, Space>)>* sum = nullptr;  // sums over the ranks in place; null: no shard
  bool tall() const { return rows >= cols; }
};

// second_moment is the running mean of the squares of the rows of O where the matrix is tall, (m), else of its columns,
// (n). Where these lines are cut themselves, the squares of all of them are summed over the ranks, each of which keeps
// all means.
template <class Space, class T>
void move_weight_normuon(const Space&, const WeightMove&, const SecondMoment&, Matrix<const T, Space> direction,
                         Vector<float, Space> second_moment, const MovedMatrix<Space>&, Workspace<Space>&);
template <class Space>
struct NorMuonScratch {
  NorMuonScratch(Workspace<Space>& workspace, std::size_t lines)  // that have a mean
      : squares(workspace.template take<double>(lines)),
        totals(workspace.template take<double>(2)),
        gain(workspace.template take<float>(lines)),
        scale(workspace.template take<float>(1)) {}
  Vector<double, Space> squares, totals;  // totals: squares of O before and after the division
  Vector<float, Space> gain, scale;
};

// second_moment (m, n) is the running mean of the squares of O.
template <class Space, class T>
void move_weight_adamuon(const Space&, const WeightMove&, const SecondMoment&, Matrix<const T, Space> direction,
                         Matrix<float, Space> second_moment, const MovedMatrix<Space>&, Workspace<Space>&);
template <class Space>
struct AdaMuonScratch {
  AdaMuonScratch(Workspace<Space>& workspace, std::size_t rows)
      : before(workspace.template take<double>(band_count(rows))),
        after(workspace.template take<double>(band_count(rows))),
        totals(workspace.template take<double>(2)),
        scale(workspace.template take<float>(1)) {}
  Vector<double, Space> before, after, totals;  // squares of the direction and of the adapted one, by bands and in all
  Vector<float, Space> scale;
};

// APOLLO's update (arXiv 2412.05270) is the gradient, each channel (row or column) times a factor that a low-rank Adam
// gives, with a limit on how fast its norm may grow. The norm stays in the memory of the space: nothing fences.
struct ChannelRule {
  double gradient_scale = 1;  // clipping
  double scale = 1;           // the update is multiplied by its square root,
  bool scale_front = false;   // before the limiter instead of after it
  bool per_tensor = false;    // one factor for all channels
  double norm_eps = 1e-8;
  double growth_limit = 1.01;  // limit on the ratio of the update's norm to the last one; 0: none
  bool limited = true;         // false: there is no earlier norm
};

// Computes factors (c) by which the unclipped gradient is to be multiplied, from the sums of squares per channel (c) of
// the direction, of the projected clipped gradient that it came from, and of the unclipped gradient. update_norm (1) is
// the norm of the update, before a factor scale after the limiter; in and out.
template <class Space>
void channel_factors(const Space&, const ChannelRule&, Vector<const float, Space> direction,
                     Vector<const float, Space> projected, Vector<const float, Space> gradient,
                     Vector<float, Space> update_norm, Vector<float, Space> factors);

// Moves W by the gradient with row i (by_row) or column i times factors[i]. weight as in move_weight, or (0, 0).
template <class Space>
void move_channels(const Space&, const WeightMove&, bool by_row, Vector<const float, Space> factors,
                   Matrix<const float, Space> gradient, Matrix<float, Space> master, Matrix<bf16, Space> weight);

}  // namespace sestina

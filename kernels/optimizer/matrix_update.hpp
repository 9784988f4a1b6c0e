// The last pass of every matrix optimizer: decay, the movement, and the rounded copy, reading everything once.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/model/coded_rows.hpp"

namespace sestina {

struct WeightMove {
  double lr = 0;     // of this matrix now; decay uses it unscaled
  double scale = 1;  // the movement is lr * scale * direction
  double weight_decay = 0;
  bool decay_first = true;      // W = (1 - lr wd) W - lr s U; false: W = (1 - lr wd) (W - lr s U)
  double* nonfinite = nullptr;  // see kernels/optimizer/finite_flag.hpp
};

// The numbers of a move in the type of the arithmetic: w = after (before w - step u).
struct MoveFactors {
  float before, step, after;
  double* nonfinite;
  explicit MoveFactors(const WeightMove& move)
      : before(move.decay_first ? static_cast<float>(1 - move.lr * move.weight_decay) : 1.0f),
        step(static_cast<float>(move.lr * move.scale)),
        after(move.decay_first ? 1.0f : static_cast<float>(1 - move.lr * move.weight_decay)),
        nonfinite(move.nonfinite) {}
};

// The elements of a matrix without padding.
template <class T, class Space>
Vector<T, Space> flat(Matrix<T, Space> x) {
  SESTINA_REQUIRE(x.extent(0) <= 1 || x.stride(0) == x.extent(1), "rows of {} lie {} apart", x.extent(1), x.stride(0));
  return Vector<T, Space>(x.data(), x.size());
}

// direction (n) float or bf16, master (n), weight (n) or empty: the rounded master weight. factor (1), or (0): a number
// that only the space knows, which the movement is multiplied by too.
template <class Space, class TU>
void move_weight(const Space&, const WeightMove&, Vector<const TU, Space> direction, Vector<float, Space> master,
                 Vector<bf16, Space> weight, Vector<const double, Space> factor = {});

// What the columns or rows of a direction are multiplied by; empty: nothing.
template <class Space>
struct ChannelFactors {
  Vector<const float, Space> values;
  bool by_row = false;
};

// Of update t: a number for the whole tensor, from which each of its elements draws by its place, whoever moves it.
std::uint64_t rounding_key(std::uint64_t stream, std::int64_t t);

// Weights in 8 bits move by direction (m, n) times its factors, as the arithmetic of fp32 has it, and are rounded up or
// down at random, so that small movements are kept in the mean (stochastic rounding, as in Q-GaLore, arXiv 2407.08296).
// The grid of a group follows its values (CodeGrid), but is kept while they fill it to 1/64: where nothing moves,
// nothing is rounded again. Rows of a slab draw as rows of a tensor of which they are the first ones.
template <class Space>
void move_coded(const Space&, const WeightMove&, Matrix<const float, Space> direction, const ChannelFactors<Space>&,
                const CodedRows&, std::uint64_t key);

}  // namespace sestina

#include "kernels/optimizer/rotated/rotated_batch.hpp"

#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/table_passes.hpp"
#include "kernels/optimizer/rotated/rotated_ranges.hpp"

namespace sestina {
namespace {

constexpr std::size_t rotated_piece = reduce_chunk;  // elements of a piece

}  // namespace

template <class Space>
RotatedBatch<Space> make_rotated_batch(std::vector<RotatedMatrix> matrices) {
  RotatedBatch<Space> batch;
  for (RotatedMatrix& matrix : matrices) {
    SESTINA_REQUIRE(matrix.elements > 0, "an empty matrix in a batch");
    matrix.first = batch.pieces;
    matrix.place = batch.elements;
    batch.pieces += (matrix.elements + rotated_piece - 1) / rotated_piece;
    batch.elements += RotatedStacks::aligned(matrix.elements);
  }
  batch.table = table_in_space<Space>("sestina::rotated_matrices", matrices);
  batch.matrices = std::move(matrices);
  return batch;
}

template <class Space>
void average_momenta(const Space& exec, double beta1, double scale, const RotatedBatch<Space>& batch) {
  const auto rate = static_cast<float>(1 - beta1), factor = static_cast<float>(scale);
  if (batch.matrices.empty()) return;
  for_pieces<rotated_piece, Space, RotatedMatrix>(
      "average_momenta", exec, batch.table, batch.pieces,
      KOKKOS_LAMBDA(const RotatedMatrix& of, std::size_t at, std::size_t count) {
        average_range(rate, factor, count, of.gradient + at, of.momentum + at);
      });
}

template <class Space>
void rotated_adam(const Space& exec, const AdamRule& rule, const RotatedBatch<Space>& batch,
                  const RotatedStacks& stacks) {
  const AdamRates rates(rule);
  const float* const rotated = stacks.rotated();
  float* const move = stacks.move();
  if (batch.matrices.empty()) return;
  for_pieces<rotated_piece, Space, RotatedMatrix>(
      "rotated_adams", exec, batch.table, batch.pieces,
      KOKKOS_LAMBDA(const RotatedMatrix& of, std::size_t at, std::size_t count) {
        const std::size_t place = of.place + at;
        rotated_range(rates, count, rotated + place, of.second_moment + at, move + place);
      });
}

template <class Space>
void move_weights(const Space& exec, const WeightMove& shared, const RotatedBatch<Space>& batch,
                  const RotatedStacks& stacks) {
  if (batch.matrices.empty()) return;
  const float *const scratch = stacks.scratch, *const move = stacks.move();
  for_pieces<rotated_piece, Space, RotatedMatrix>(
      "move_weights", exec, batch.table, batch.pieces,
      KOKKOS_LAMBDA(const RotatedMatrix& of, std::size_t at, std::size_t count) {
        WeightMove own = shared;
        own.lr = shared.lr * of.lr;
        own.weight_decay = shared.weight_decay * of.weight_decay;
        const MoveFactors f(own);
        const float* __restrict const direction = (of.in_scratch ? scratch : move) + of.place + at;
        float* __restrict const master = of.master + at;
        for (std::size_t i = 0; i < count; ++i) master[i] = f.after * (f.before * master[i] - f.step * direction[i]);
        flag_nonfinite(count, master, f.nonfinite);
        if (of.weight == nullptr) return;
        for (std::size_t i = 0; i < count; ++i) of.weight[at + i] = bf16(master[i]);
      });
}

#define SESTINA_ROTATED_BATCH(Space)                                                                                  \
  template RotatedBatch<Space> make_rotated_batch<Space>(std::vector<RotatedMatrix>);                                 \
  template void average_momenta<Space>(const Space&, double, double, const RotatedBatch<Space>&);                     \
  template void rotated_adam<Space>(const Space&, const AdamRule&, const RotatedBatch<Space>&, const RotatedStacks&); \
  template void move_weights<Space>(const Space&, const WeightMove&, const RotatedBatch<Space>&, const RotatedStacks&);
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_BATCH)

}  // namespace sestina

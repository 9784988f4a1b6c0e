#include "kernels/optimizer/batch/flat_batch.hpp"

#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/optimizer/rotated/rotated_ranges.hpp"

namespace sestina {

template <class Space>
FlatBatch<Space> make_flat_batch(std::vector<FlatMatrix> matrices) {
  FlatBatch<Space> batch;
  for (FlatMatrix& matrix : matrices) {
    matrix.elements = std::size_t{matrix.rows} * matrix.cols;
    SESTINA_REQUIRE(matrix.elements > 0 && matrix.elements < std::size_t{1} << 32 && matrix.apart >= matrix.cols,
                    "a matrix {} x {}, rows {} apart, in a batch", matrix.rows, matrix.cols, matrix.apart);
    matrix.first = batch.pieces;
    matrix.number = static_cast<std::size_t>(&matrix - matrices.data());
    matrix.place = batch.elements;
    batch.pieces += matrix.pieces().count;
    batch.elements += FlatStacks::aligned(matrix.elements);
    matrix.line = batch.lines;
    batch.lines += FlatStacks::aligned(std::size_t{matrix.rows} + matrix.cols);
  }
  batch.table = table_in_space<Space>("sestina::flat_matrices", matrices);
  batch.matrices = std::move(matrices);
  return batch;
}

template <class Space>
void average_momenta(const Space& exec, double beta1, double scale, const FlatBatch<Space>& batch) {
  const auto rate = static_cast<float>(1 - beta1), factor = static_cast<float>(scale);
  for_flat_pieces(
      "average_momenta", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        average_range(rate, factor, count, of.gradient + at, of.momentum + at);
      });
}

template <class Space>
void move_weights(const Space& exec, const WeightMove& shared, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                  Vector<const double, Space> factors) {
  const bool scaled = factors.extent(0) != 0;
  for_flat_pieces(
      "move_weights", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        WeightMove own = shared;
        own.lr = shared.lr * of.lr;
        own.weight_decay = shared.weight_decay * of.weight_decay;
        MoveFactors f(own);
        if (scaled) f.step = static_cast<float>(own.lr * own.scale * factors(of.number));
        const float* const directions = stacks[of.stack];
        for_runs_of(of, at, count, [&](std::size_t from, std::size_t to, std::size_t n) {
          move_range(f, n, directions + to, of.master + from, of.weight == nullptr ? nullptr : of.weight + from);
        });
      });
}

#define SESTINA_FLAT_BATCH(Space)                                                                                \
  template FlatBatch<Space> make_flat_batch<Space>(std::vector<FlatMatrix>);                                     \
  template void average_momenta<Space>(const Space&, double, double, const FlatBatch<Space>&);                   \
  template void move_weights<Space>(const Space&, const WeightMove&, const FlatBatch<Space>&, const FlatStacks&, \
                                    Vector<const double, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_FLAT_BATCH)

}  // namespace sestina

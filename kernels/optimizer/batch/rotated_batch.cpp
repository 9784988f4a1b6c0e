#include "kernels/optimizer/batch/rotated_batch.hpp"

#include "kernels/optimizer/rotated/rotated_ranges.hpp"

namespace sestina {
namespace {

constexpr std::size_t side_piece = 64;  // lines of a piece

// Calls body(i, j, place, count) for the elements at, ..., at + count of a matrix, row by row: (i, j) and on, which lie
// at `place` of a stack.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_rows_of(const FlatMatrix& of, std::size_t at, std::size_t count, const Body& body) {
  for (std::size_t e = at, end = at + count; e < end;) {
    const auto narrow = static_cast<std::uint32_t>(e);
    const std::size_t i = narrow / of.cols, j = narrow % of.cols, n = Kokkos::min(end - e, of.cols - j);
    body(i, j, of.place + e, n);
    e += n;
  }
}

// Updates the eigenvalues of lines [begin, begin + count) of a side by the sums of squares of X (rows, cols), whose
// weights are those of the other side: of a row at once, of columns by chunks of rows, as ColumnSquaresScratch has
// them.
struct LineAverage {
  float rate;

  KOKKOS_INLINE_FUNCTION void take(const FlatSide& side, std::size_t line, float sum) const {
    side.values[line] = next_eigenvalue(rate, side.scale, side.least, sum, side.values[line]);
  }
  KOKKOS_INLINE_FUNCTION void row(const FlatSide& side, const float* x, const float* weights, std::size_t line) const {
    take(side, line, squares_of_row(side.of.cols, x + line * side.of.cols, weights));
  }
  template <std::size_t most>
  KOKKOS_INLINE_FUNCTION void columns(const FlatSide& side, const float* x, const float* weights, std::size_t begin,
                                      std::size_t count) const {
    constexpr std::size_t chunk = ColumnSquaresScratch<Serial>::chunk;
    const std::size_t rows = side.of.rows, cols = side.of.cols;
    float totals[most] = {};
    for (std::size_t first = 0; first < rows; first += chunk) {
      float sums[most] = {};
      for (std::size_t i = first; i < Kokkos::min(rows, first + chunk); ++i)
        add_row_squares(count, weights[i], x + i * cols + begin, sums);
      for (std::size_t j = 0; j < count; ++j) totals[j] += sums[j];
    }
    for (std::size_t j = 0; j < count; ++j) take(side, begin + j, totals[j]);
  }
};

}  // namespace

template <class Space>
FlatSides<Space> make_flat_sides(std::vector<FlatSide> sides) {
  FlatSides<Space> made;
  for (FlatSide& side : sides) {
    side.scale = static_cast<float>(1 / static_cast<double>(side.left ? side.of.cols : side.of.rows));
    side.least = least_eigenvalue(side.ceiling);
    side.elements = side.left ? side.of.rows : side.of.cols;
    side.first = made.pieces;
    made.pieces += (side.elements + side_piece - 1) / side_piece;
  }
  made.table = table_in_space<Space>("sestina::flat_sides", sides);
  return made;
}

template <class Space>
void rotated_adam(const Space& exec, const AdamRule& rule, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                  std::size_t gradients, std::size_t momenta) {
  const AdamRates rates(rule);
  const float* const rotated = stacks[gradients];
  float* const move = stacks[momenta];
  for_flat_pieces(
      "rotated_adams", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        const std::size_t place = of.place + at;
        rotated_range(rates, count, rotated + place, of.second_moment + at, move + place);
      });
}

template <class Space>
void average_squares(const Space& exec, double beta2, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                     std::size_t stack) {
  const auto rate = static_cast<float>(1 - beta2);
  const float* const rotated = stacks[stack];
  for_flat_pieces(
      "average_squares", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        square_range(rate, count, rotated + of.place + at, of.second_moment + at);
      });
}

template <class Space>
void divide_by_root(const Space& exec, double eps, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                    std::size_t stack) {
  const auto small = static_cast<float>(eps);
  float* const direction = stacks[stack];
  for_flat_pieces(
      "divide_by_root", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        divide_range(small, count, of.second_moment + at, direction + of.place + at);
      });
}

template <class Space>
void inverse_square_roots(const Space& exec, const FlatSides<Space>& sides, Vector<float, Space> roots) {
  if (sides.pieces == 0) return;
  for_pieces<side_piece, Space, FlatSide>(
      "inverse_roots", exec, sides.table, sides.pieces,
      KOKKOS_LAMBDA(const FlatSide& side, std::size_t at, std::size_t count) {
        for (std::size_t i = at; i < at + count; ++i) roots(side.line() + i) = inverse_square_root(side.values[i]);
      });
}

template <class Space>
void average_eigenvalues(const Space& exec, double beta, const FlatSides<Space>& sides, const FlatStacks& stacks,
                         std::size_t stack, Vector<const float, Space> roots) {
  const LineAverage average{static_cast<float>(1 - beta)};
  const float* const values = stacks[stack];
  const FlatSide* const table = sides.table.data();
  const std::size_t entries = sides.table.extent(0), pieces = sides.pieces;
  if (pieces == 0) return;
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for("line_squares", Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t number) {
      const TablePiece<side_piece, FlatSide> piece(table, entries, number);
      const FlatSide& side = piece.of;
      const float* const x = values + side.of.place;
      const float* const weights = roots.data() + side.of.line + (side.left ? side.of.rows : 0);
      if (!side.left) return average.template columns<side_piece>(side, x, weights, piece.at, piece.count);
      for (std::size_t i = piece.at; i < piece.at + piece.count; ++i) average.row(side, x, weights, i);
    });
  } else {  // a warp takes a row, a thread a column
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        "line_squares", Teams(exec, static_cast<int>(pieces), 4, 32),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const TablePiece<side_piece, FlatSide> piece(table, entries, static_cast<std::size_t>(team.league_rank()));
          const FlatSide& side = piece.of;
          const float* const x = values + side.of.place;
          const float* const weights = roots.data() + side.of.line + (side.left ? side.of.rows : 0);
          if (!side.left) {
            Kokkos::parallel_for(Kokkos::TeamVectorRange(team, piece.count), [&](std::size_t j) {
              average.template columns<1>(side, x, weights, piece.at + j, 1);
            });
            return;
          }
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, piece.count), [&](std::size_t i) {
            const std::size_t line = piece.at + i, cols = side.of.cols;
            float total = 0;
            Kokkos::parallel_reduce(
                Kokkos::ThreadVectorRange(team, cols),
                [&](std::size_t j, float& sum) { sum += line_square(x[line * cols + j] * weights[j]); }, total);
            Kokkos::single(Kokkos::PerThread(team), [&] { average.take(side, line, total); });
          });
        });
  }
}

template <class Space>
void scale_damped(const Space& exec, double eps, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                  std::size_t stack, Vector<const float, Space> roots) {
  const auto small = static_cast<float>(eps);
  float* const values = stacks[stack];
  for_flat_pieces(
      "scale_damped", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        const float *const rows = roots.data() + of.line, *const cols = rows + of.rows;
        for_rows_of(of, at, count, [&](std::size_t i, std::size_t j, std::size_t place, std::size_t n) {
          damped_range(small, rows[i], n, cols + j, values + place);
        });
      });
}

template <class Space>
void scale_lines(const Space& exec, bool left, const FlatBatch<Space>& batch, const FlatStacks& stacks,
                 std::size_t stack, Vector<const float, Space> roots) {
  float* const values = stacks[stack];
  for_flat_pieces(
      "scale_lines", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        const float *const rows = roots.data() + of.line, *const cols = rows + of.rows;
        for_rows_of(of, at, count, [&](std::size_t i, std::size_t j, std::size_t place, std::size_t n) {
          float* const x = values + place;
          if (!left) return scale_range(1, n, cols + j, x);
          for (std::size_t k = 0; k < n; ++k) x[k] *= rows[i];
        });
      });
}

#define SESTINA_ROTATED_BATCH(Space)                                                                                   \
  template FlatSides<Space> make_flat_sides<Space>(std::vector<FlatSide>);                                             \
  template void rotated_adam<Space>(const Space&, const AdamRule&, const FlatBatch<Space>&, const FlatStacks&,         \
                                    std::size_t, std::size_t);                                                         \
  template void average_squares<Space>(const Space&, double, const FlatBatch<Space>&, const FlatStacks&, std::size_t); \
  template void divide_by_root<Space>(const Space&, double, const FlatBatch<Space>&, const FlatStacks&, std::size_t);  \
  template void inverse_square_roots<Space>(const Space&, const FlatSides<Space>&, Vector<float, Space>);              \
  template void average_eigenvalues<Space>(const Space&, double, const FlatSides<Space>&, const FlatStacks&,           \
                                           std::size_t, Vector<const float, Space>);                                   \
  template void scale_damped<Space>(const Space&, double, const FlatBatch<Space>&, const FlatStacks&, std::size_t,     \
                                    Vector<const float, Space>);                                                       \
  template void scale_lines<Space>(const Space&, bool, const FlatBatch<Space>&, const FlatStacks&, std::size_t,        \
                                   Vector<const float, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_BATCH)

}  // namespace sestina

#include "kernels/blas/sums.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

template <class Space>
constexpr std::size_t column_block = is_host<Space> ? 512 : 1;

// Sets partial (chunks, n) to the sum of each chunk of rows.
template <class Space>
void sum_chunks(const Space& exec, Matrix<const float, Space> x, Vector<const float, Space> weights,
                Matrix<float, Space> partial) {
  const std::size_t rows = x.extent(0), cols = x.extent(1), chunks = partial.extent(0);
  constexpr std::size_t width = column_block<Space>, row_chunk = ColumnSquaresScratch<Space>::chunk;
  const std::size_t blocks = (cols + width - 1) / width;
  const bool weighted = weights.extent(0) != 0;
  const Kokkos::RangePolicy<Space> tiles(exec, 0, chunks * blocks);
  Kokkos::parallel_for(
      "column_squares", tiles, KOKKOS_LAMBDA(std::size_t tile) {
        const std::size_t chunk = tile / blocks, at = tile % blocks * width;
        const std::size_t count = Kokkos::min(width, cols - at), end = Kokkos::min(rows, (chunk + 1) * row_chunk);
        float* sums = &partial(chunk, at);
        for (std::size_t j = 0; j < count; ++j) sums[j] = 0;
        for (std::size_t i = chunk * row_chunk; i < end; ++i)
          add_row_squares(count, weighted ? weights(i) : 1.0f, &x(i, at), sums);
      });
}

}  // namespace

template <class Space>
void row_squares(const Space& exec, Matrix<const float, Space> x, Vector<const float, Space> weights,
                 Vector<float, Space> sums) {
  const std::size_t rows = x.extent(0), cols = x.extent(1);
  SESTINA_REQUIRE(sums.extent(0) == rows && (weights.extent(0) == 0 || weights.extent(0) == cols),
                  "X ({}, {}), weights {}, sums {}", rows, cols, weights.extent(0), sums.extent(0));
  const bool weighted = weights.extent(0) != 0;
  if constexpr (is_host<Space>) {
    const Kokkos::RangePolicy<Space> all(exec, 0, rows);
    Kokkos::parallel_for("row_squares", all, [=](std::size_t i) {
      sums(i) = squares_of_row(cols, x.data() + i * x.stride(0), weighted ? weights.data() : nullptr);
    });
  } else {  // a team takes a row, in an order that is fixed by the team's size
    using Teams = Kokkos::TeamPolicy<Space>;
    const Teams teams(exec, static_cast<int>(rows), 128);
    Kokkos::parallel_for(
        "row_squares", teams, KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const std::size_t i = team.league_rank();
          float total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, cols),
              [&](std::size_t j, float& sum) { sum += line_square(weighted ? x(i, j) * weights(j) : x(i, j)); }, total);
          if (team.team_rank() == 0) sums(i) = total;
        });
  }
}

template <class Space>
void column_squares(const Space& exec, Matrix<const float, Space> x, Vector<const float, Space> weights,
                    Vector<float, Space> sums, Workspace<Space>& workspace) {
  const std::size_t rows = x.extent(0), cols = x.extent(1);
  SESTINA_REQUIRE(sums.extent(0) == cols && (weights.extent(0) == 0 || weights.extent(0) == rows),
                  "X ({}, {}), weights {}, sums {}", rows, cols, weights.extent(0), sums.extent(0));
  const auto frame = workspace.frame();
  const Matrix<float, Space> partial = ColumnSquaresScratch<Space>(workspace, rows, cols).partial;
  sum_chunks<Space>(exec, x, weights, partial);
  constexpr std::size_t width = column_block<Space>;
  const Kokkos::RangePolicy<Space> blocks(exec, 0, (cols + width - 1) / width);
  Kokkos::parallel_for(
      "column_total", blocks, KOKKOS_LAMBDA(std::size_t block) {
        const std::size_t at = block * width, end = Kokkos::min(cols, at + width);
        for (std::size_t j = at; j < end; ++j) sums(j) = 0;
        for (std::size_t chunk = 0; chunk < partial.extent(0); ++chunk)
          for (std::size_t j = at; j < end; ++j) sums(j) += partial(chunk, j);
      });
}

#define SESTINA_LINE_SQUARES(Space)                                                                         \
  template void row_squares<Space>(const Space&, Matrix<const float, Space>, Vector<const float, Space>,    \
                                   Vector<float, Space>);                                                   \
  template void column_squares<Space>(const Space&, Matrix<const float, Space>, Vector<const float, Space>, \
                                      Vector<float, Space>, Workspace<Space>&);
SESTINA_INSTANTIATE_LANES(SESTINA_LINE_SQUARES)

}  // namespace sestina

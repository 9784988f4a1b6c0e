#include "kernels/optimizer/muon/moment_batch.hpp"

namespace sestina {
namespace {

// Lines are those of the wide form of O (s, l): its l columns, or, of a square matrix, its rows.
struct LinePlace {
  std::size_t begin, stride, length;
  KOKKOS_INLINE_FUNCTION LinePlace(const BatchedMatrix& of, std::size_t line)
      : begin(of.wide + (of.rows == of.cols ? line * wide_row(of.cols) : line)),
        stride(of.rows == of.cols ? 1 : wide_row(of.long_side())),
        length(of.short_side()) {}
};

// Updates the moment of every line; before and after receive its squares, gain its factor.
template <class T, class Space>
void take_lines(const Space& exec, const SecondMoment& rule, const MuonBatch<Space>& batch, const T* wide,
                const MomentBatchScratch<Space>& scratch) {
  const MomentRates rates(rule);
  double *const before = scratch.before.data(), *const after = scratch.after.data();
  float* const gain = scratch.gain.data();
  for_pieces<line_piece, Space, BatchedLines>(
      "normuon_lines", exec, batch.lines, batch.line_pieces,
      KOKKOS_LAMBDA(const BatchedLines& lines, std::size_t at, std::size_t count) {
        for (std::size_t line = at; line < at + count; ++line) {
          const LinePlace place(lines.of, line);
          double squares = 0;
          for (std::size_t k = 0; k < place.length; ++k) squares += square(wide[place.begin + k * place.stride]);
          const double share = 1.0 / static_cast<double>(place.length);
          const float factor = rates.gain(static_cast<float>(share * squares), lines.of.second_moment[line]);
          const std::size_t to = lines.of.line + line;
          gain[to] = factor;
          before[to] = squares;
          after[to] = squares * square(factor);
        }
      });
}

// Sets scale(i) of each matrix by the totals of its sums, of which it has range(matrix).
template <class Space, class Range>
void scale_by_totals(const char* label, const Space& exec, bool keep, const MuonBatch<Space>& batch, const Range& range,
                     const MomentBatchScratch<Space>& scratch) {
  const Vector<float, Space> scale = scratch.scale;
  total_entries<2, Space, BatchedMatrix>(
      label, exec, batch.table, {scratch.before.data(), scratch.after.data()}, range,
      KOKKOS_LAMBDA(std::size_t i, const Kokkos::Array<double, 2>& totals) {
        scale(i) = kept_norm(keep, totals[0], totals[1]);
      });
}

struct LinesOf {
  KOKKOS_INLINE_FUNCTION EntryRange operator()(const BatchedMatrix& of) const { return of.lines(); }
};
struct ChunksOf {
  KOKKOS_INLINE_FUNCTION EntryRange operator()(const BatchedMatrix& of) const { return of.chunks(); }
};

}  // namespace

template <class T, class Space>
void move_batch_normuon(const Space& exec, const WeightMove& move, const SecondMoment& rule,
                        const MuonBatch<Space>& batch, Vector<const T, Space> directions,
                        const MomentBatchScratch<Space>& scratch) {
  if (batch.matrices.empty()) return;
  take_lines<T, Space>(exec, rule, batch, directions.data(), scratch);
  scale_by_totals<Space>("normuon_scale", exec, rule.keep_norm, batch, LinesOf{}, scratch);
  const float *const gain = scratch.gain.data(), *const scale = scratch.scale.data();
  move_batch_along<T, Space>(
      exec, move, batch, directions, KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t e, float o) {
        const auto at = static_cast<std::uint32_t>(e);
        const std::size_t line = of.rows >= of.cols ? at / of.cols : at % of.cols;
        return o * (scale[of.number] * gain[of.line + line]);
      });
}

template <class T, class Space>
void move_batch_adamuon(const Space& exec, const WeightMove& move, const SecondMoment& rule,
                        const MuonBatch<Space>& batch, Vector<const T, Space> directions,
                        const MomentBatchScratch<Space>& scratch) {
  if (batch.matrices.empty()) return;
  const MomentRates rates(rule);
  const T* const wide = directions.data();
  sum_table_pieces<reduce_chunk, Space, BatchedMatrix>(
      "adamuon_moment", exec, batch.table, scratch.before,
      KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t at, std::size_t count) {
        return lane_sum(count, [=](std::size_t k) {
          const auto o = static_cast<float>(wide[of.wide + wide_place(of, at + k)]);
          rates.take(o, of.second_moment[at + k]);
          return square(o);
        });
      });
  sum_table_pieces<reduce_chunk, Space, BatchedMatrix>(
      "adamuon_after", exec, batch.table, scratch.after,
      KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t at, std::size_t count) {
        return lane_sum(count, [=](std::size_t k) {
          const auto o = static_cast<float>(wide[of.wide + wide_place(of, at + k)]);
          return square(rates.divided(o, of.second_moment[at + k]));
        });
      });
  scale_by_totals<Space>("adamuon_scale", exec, rule.keep_norm, batch, ChunksOf{}, scratch);
  const float* const scale = scratch.scale.data();
  move_batch_along<T, Space>(
      exec, move, batch, directions, KOKKOS_LAMBDA(const BatchedMatrix& of, std::size_t e, float o) {
        return rates.divided(scale[of.number] * o, of.second_moment[e]);
      });
}

#define SESTINA_MOMENT_BATCH(Space, T)                                                             \
  template void move_batch_normuon<T, Space>(const Space&, const WeightMove&, const SecondMoment&, \
                                             const MuonBatch<Space>&, Vector<const T, Space>,      \
                                             const MomentBatchScratch<Space>&);                    \
  template void move_batch_adamuon<T, Space>(const Space&, const WeightMove&, const SecondMoment&, \
                                             const MuonBatch<Space>&, Vector<const T, Space>,      \
                                             const MomentBatchScratch<Space>&);
#define SESTINA_MOMENT_BATCHES(Space) SESTINA_MOMENT_BATCH(Space, float) SESTINA_MOMENT_BATCH(Space, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_MOMENT_BATCHES)

}  // namespace sestina

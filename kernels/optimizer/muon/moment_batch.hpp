// The last pass of NorMuon and of AdaMuon (matrix_update.hpp has the rules) for all matrices of a batch, in three and
// four launches; and what both do with a line or an element, which the pass of one matrix shares.
#pragma once
#include <cstddef>

#include "kernels/optimizer/muon/muon_batch.hpp"

namespace sestina {

// Which of the two divides: by the mean square of a line (a row of O where the matrix is tall, else a column), or of an
// element.
enum class MomentOf { line, element };

// Sums and factors of a batch. sums: lines of all matrices, or chunks of all.
template <class Space>
struct MomentBatchScratch {
  MomentBatchScratch(Workspace<Space>& workspace, MomentOf of, const BatchSizes& n)
      : before(workspace.template take<double>(of == MomentOf::line ? n.lines : n.chunks)),
        after(workspace.template take<double>(before.extent(0))),
        gain(workspace.template take<float>(of == MomentOf::line ? n.lines : 0)),
        scale(workspace.template take<float>(n.matrices)) {}
  Vector<double, Space> before, after;  // squares of O, and of the divided direction
  Vector<float, Space> gain;            // of each line
  Vector<float, Space> scale;           // of each matrix
};

// Update the second moments of all matrices (BatchedMatrix::second_moment) and move them, as move_weight_normuon and
// move_weight_adamuon do one; `move` as in move_batch. No fence.
template <class T, class Space>
void move_batch_normuon(const Space&, const WeightMove& move, const SecondMoment&, const MuonBatch<Space>&,
                        Vector<const T, Space> directions, const MomentBatchScratch<Space>&);
template <class T, class Space>
void move_batch_adamuon(const Space&, const WeightMove& move, const SecondMoment&, const MuonBatch<Space>&,
                        Vector<const T, Space> directions, const MomentBatchScratch<Space>&);

// Returns the factor that gives a direction its norm back, from the squares before and after it was divided.
KOKKOS_INLINE_FUNCTION float kept_norm(bool keep, double before, double after) {
  if (!keep || !(after > 0)) return 1;
  return static_cast<float>(Kokkos::sqrt(before)) / static_cast<float>(Kokkos::sqrt(after));
}

// The numbers of a rule in the type of the arithmetic.
struct MomentRates {
  float rate, eps;
  explicit MomentRates(const SecondMoment& rule)
      : rate(static_cast<float>(1 - rule.beta2)), eps(static_cast<float>(rule.eps)) {}

  // NorMuon: takes the mean square of a line into its moment and returns the factor of the line.
  KOKKOS_INLINE_FUNCTION float gain(float mean, float& moment) const {
    moment += rate * (mean - moment);
    return 1 / Kokkos::sqrt(Kokkos::max(moment, eps));
  }
  // AdaMuon: takes an element into its moment, and divides it.
  KOKKOS_INLINE_FUNCTION void take(float o, float& moment) const { moment += rate * (o * o - moment); }
  KOKKOS_INLINE_FUNCTION float divided(float o, float moment) const { return o / (Kokkos::sqrt(moment) + eps); }
};

}  // namespace sestina

// Groups of ranks for one matrix (parallel.partition = "groups"). Where ranks outnumber matrices, whole matrices leave
// most ranks idle: the largest one bounds the load. Here the ranks of a stage are one machine of dp x tp places, and
// what goes to a place is a share of a matrix (MatrixShare):
//   - A matrix of Muon, NorMuon or AdaMuon (shard_work) is divided among `ranks` neighbours, which update it
//     together: each has a slab of the longer side, adds its part of the Gram matrix, forms its rows of the polynomial,
//     and multiplies its slab (kernels/optimizer/newton_schulz.hpp, ShardSums). Nothing is calculated twice.
//   - A matrix that its kind treats as several (heads, blocks of optimizer.max_dim) goes to places part by part, each
//     to another one; where these are too few, it stays whole.
//   - Any other matrix goes to one place, whole, and so does each where there are rules on the update
//     (kernels/optimizer/update_rules.hpp), which act on whole matrices.
// Gradients are summed to one data-parallel rank as with other partitions (StagePlan::owner; here all ranks receive as
// much), which sends them on to the shares; updated shares come back and are gathered as always. A reduce-scatter moves
// the whole gradient through each rank, this only what a rank owns, 1/dp of it. Gradients of experts (parallel.ep) are
// summed to ranks that hold them; their shares may be anywhere.
//
// Groups begin at multiples of their size, and sizes are multiples of one another: each rank is in one group of each
// size. The size is the smallest for which a packing within 5 % of the bound is found, by the cost of the deck.
// No Kokkos.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "core/layout/plan.hpp"
#include "core/optimizer/base/routing.hpp"

namespace sestina {

struct Plan;

// Returns the sizes that groups of so many ranks have, ascending: 1, and on with the smallest factors of the number.
std::vector<int> group_sizes(int ranks);

// Returns whether the matrix may be divided among ranks that update it together.
bool divides(const TensorSpec&, const OptimizerOptions&);

// Deals the matrices of a stage out to its ranks: sets their owners, homes and shares, and the bound of their loads.
// specs: its matrices, in backward order.
void deal_shares(StagePlan&, const PlanInput&, const std::vector<int>& specs);

// A part of a matrix that may be updated by itself on any rank, and its number among the tensor's matrices, or, where
// the kind cuts a matrix into blocks (core/optimizer/base/own_blocks.hpp), that of the block: then it is of the first.
struct SeparatePart {
  MatrixPart part;
  std::size_t matrix = 0, block = 0;
  bool is_block = false;
};
std::vector<SeparatePart> separate_parts(const TensorSpec&, const OptimizerOptions&);

// Returns whether a share is all of its matrix, which then is to its rank what it is to one rank by itself.
inline bool is_whole(const MatrixShare& share, const TensorSpec& matrix) {
  return share.rows() == matrix.rows && share.cols() == matrix.cols;
}

// Returns what the rank has of the matrix, as a matrix.
inline TensorSpec share_shape(const MatrixShare& share) {
  TensorSpec held;
  held.rows = share.rows();
  held.cols = share.cols();
  return held;
}

// Calls visit(share, part) for each part of each share that is updated by itself; share: its number in the list. A rank
// has one such part of a matrix, or all of it.
template <class Visit>
void for_separate_shares(const StagePlan& stage, const PlanInput& input, const Visit& visit) {
  std::vector<SeparatePart> parts;
  std::size_t number = 0;
  for (std::size_t i = 0; i < stage.shares.size(); ++i) {
    const MatrixShare& share = stage.shares[i];
    const TensorSpec& spec = stage.specs[static_cast<std::size_t>(share.spec)];
    if (share.ranks > 1) continue;
    if (is_whole(share, spec)) {
      std::size_t matrix = 0;
      for (const MatrixPart& part : matrix_parts(spec, input.optimizer)) visit(i, SeparatePart{part, matrix++});
      continue;
    }
    if (i == 0 || stage.shares[i - 1].spec != share.spec) {
      parts = separate_parts(spec, input.optimizer);
      number = 0;
    }
    visit(i, parts[number++]);
  }
}

// Returns a line for each shape of matrices and how they are shared out, for `plan`.
std::vector<std::string> group_lines(const Plan&);

}  // namespace sestina

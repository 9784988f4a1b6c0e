// Passes of SOAP-Muon (core/optimizer/methods/soap_muon/soap_muon.hpp) over a matrix, as a vector without padding, and
// over all matrices of a batch in one launch each (flat_batch.hpp); none may be a block. Nothing fences.
#pragma once
#include "kernels/optimizer/batch/flat_batch.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

// Sets x (n) = u.
template <class Space>
void form_blend(const Space&, const Blend<Space>& u, Vector<float, Space> x);

// Adds (1 - beta2) (P^2 - V) to V and divides P (n) by the larger of sqrt(V) and eps.
template <class Space>
void divide_by_moment(const Space&, double beta2, double eps, Vector<float, Space> v, Vector<float, Space> p);

// Memory of match_norm for n numbers.
template <class Space>
struct MatchNormScratch {
  MatchNormScratch(Workspace<Space>& workspace, std::size_t n)
      : squares(workspace, n), factor(workspace.template take<float>(1)) {}
  SumScratch<Space> squares;
  Vector<float, Space> factor;
};
// Multiplies d (n) so that its norm is that of a vector whose squares, summed by chunks, are `squares`; zero stays
// zero.
template <class Space>
void match_norm(const Space&, Vector<const double, Space> squares, const MatchNormScratch<Space>&,
                Vector<float, Space> d);

// Sets what lies in a stack to u = p G + q M (MomentumStep).
template <class Space>
void form_blends(const Space&, const MomentumStep&, const FlatBatch<Space>&, const FlatStacks&, std::size_t stack);

// divide_by_moment of what lies in a stack.
template <class Space>
void divide_by_moments(const Space&, double beta2, double eps, const FlatBatch<Space>&, const FlatStacks&,
                       std::size_t stack);

// Memory of match_norms.
template <class Space>
struct MatchNormsScratch {
  MatchNormsScratch(Workspace<Space>& workspace, std::size_t pieces, std::size_t matrices)
      : squares(workspace.template take<double>(pieces)), factors(workspace.template take<float>(matrices)) {}
  Vector<double, Space> squares;
  Vector<float, Space> factors;
};
// match_norm of the direction of each matrix (FlatMatrix::stack), to the squares by pieces of all matrices.
template <class Space>
void match_norms(const Space&, Vector<const double, Space> squares, const MatchNormsScratch<Space>&,
                 const FlatBatch<Space>&, const FlatStacks&);

}  // namespace sestina

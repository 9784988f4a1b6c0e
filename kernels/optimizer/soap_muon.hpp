// Passes of SOAP-Muon (core/optimizer/methods/soap_muon.hpp). Vectors are matrices without padding. Nothing fences.
#pragma once
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

}  // namespace sestina

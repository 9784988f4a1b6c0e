// Newton-Schulz on Gram matrices (Dao-AILab, Gram Newton-Schulz, 2026). For X (s, l) with s well below l the products
// with X are most of the work. All steps from one X are polynomials of R = X X^T, which commute: with P = a I + b R +
// c R^2 a step makes P X of X, and P R P = R P^2 of R. So steps multiply (s, s) matrices alone, Q = P_k ... P_1, and X
// becomes Q X once for several of them (restarts_gram). The (s, s) matrices are in float whatever X is stored as: in
// bf16 the small eigenvalues of R would be lost.
#include <array>
#include <utility>

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {
namespace {

// The matrices (s, s) between two forms of X; they change places.
template <class Space>
struct GramParts {
  Matrix<float, Space> r, p, q, w, next;
  explicit GramParts(const std::array<Matrix<float, Space>, 5>& parts)
      : r(parts[0]), p(parts[1]), q(parts[2]), w(parts[3]), next(parts[4]) {}
};

// Sets R to that of the next X. The product is symmetric but for rounding, and is made so.
template <class Space>
void advance_gram(const Space& exec, Gemm<Space>& gemm, GramParts<Space>& g) {
  gemm.template symmetric<float, float>(Op::none, 1, g.p, 0, g.w);
  gemm.template operator()<float, float>(Op::none, Op::none, 1, g.r, g.w, 0, g.next);
  mirror_lower<Space, float>(exec, g.next);
  std::swap(g.r, g.next);
}

// Returns Q as X is stored, in the memory of w where that is another type.
template <class T, class Space>
Matrix<const T, Space> rounded_product(const Space& exec, const GramParts<Space>& g) {
  if constexpr (std::is_same_v<T, float>) {
    return g.q;
  } else {
    const std::size_t s = g.q.extent(0), n = g.q.size();
    const Vector<T, Space> to(reinterpret_cast<T*>(g.w.data()), n);
    convert<Space, float, T>(exec, Vector<const float, Space>(g.q.data(), n), to);
    return Matrix<const T, Space>(to.data(), s, s);
  }
}

}  // namespace

template <class T, class Space>
Matrix<T, Space> gram_newton_schulz(const Space& exec, Gemm<Space>& gemm, const NewtonSchulz& ns,
                                    const NewtonSchulzScratch<T, Space>& scratch) {
  Matrix<T, Space> x = scratch.x, y = scratch.y;
  GramParts<Space> g(scratch.parts);
  for (std::size_t i = 0; i < ns.steps.size(); ++i) {
    const NewtonSchulzStep& step = ns.steps[i];
    const bool starts = i == 0 || restarts_gram(i), ends = i + 1 == ns.steps.size() || restarts_gram(i + 1);
    if (starts) gemm.template symmetric<T, float>(Op::none, 1, x, 0, g.r);
    Vector<const float, Space> factor;
    if (i == 0 && ns.gram_norm) {
      gram_norm_factor<float, Space>(exec, ns, g.r, scratch.inverse, scratch.sums, scratch.factor);
      factor = scratch.factor;
    }
    if (step.c != 0) gemm.template symmetric<float, float>(Op::none, 1, g.r, 0, g.p);
    form_polynomial<float, Space>(exec, step, g.r, factor, g.p);
    if (!ends) advance_gram<Space>(exec, gemm, g);
    if (starts) {
      std::swap(g.p, g.q);
    } else {
      gemm.template operator()<float, float>(Op::none, Op::none, 1, g.p, g.q, 0, g.w);
      std::swap(g.q, g.w);
    }
    if (!ends) continue;
    gemm.template operator()<T, T>(Op::none, Op::none, 1, rounded_product<T, Space>(exec, g), x, 0, y);
    std::swap(x, y);
  }
  return x;
}

#define SESTINA_GRAM(Space, T)                                                                            \
  template Matrix<T, Space> gram_newton_schulz<T, Space>(const Space&, Gemm<Space>&, const NewtonSchulz&, \
                                                         const NewtonSchulzScratch<T, Space>&);
#define SESTINA_GRAMS(Space) \
  SESTINA_GRAM(Space, float) \
  SESTINA_GRAM(Space, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_GRAMS)

}  // namespace sestina

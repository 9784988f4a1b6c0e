// The bound of logits as functions of one element, for the kernels that make it and that go back through it.
#pragma once
#include "kernels/blas/math.hpp"
#include "kernels/model/loss.hpp"

namespace sestina {

// Returns the bounded logit; not finite where the logit is not.
template <class A>
class CappedLogit {
 public:
  explicit CappedLogit(SoftCap cap)
      : bound_(static_cast<A>(cap.bound)), inverse_(A(1) / bound_), root_(cap.form == SoftCap::Form::root) {}
  KOKKOS_FORCEINLINE_FUNCTION A operator()(A x) const {
    const A u = x * inverse_;
    if (root_) return x / Kokkos::sqrt(u * u + A(1));
    const A e = exp_fast(A(-2) * u);
    return Kokkos::fma(A(0), x, bound_ * (A(1) - e) / (A(1) + e));
  }

 private:
  A bound_, inverse_;
  bool root_;
};

// Returns the slope of the bound where it gave z.
template <class A>
class CapSlope {
 public:
  explicit CapSlope(SoftCap cap)
      : inverse_square_(cap.bound > 0 ? static_cast<A>(1 / (cap.bound * cap.bound)) : A(0)),
        root_(cap.form == SoftCap::Form::root) {}
  KOKKOS_FORCEINLINE_FUNCTION bool bounded() const { return inverse_square_ > A(0); }
  KOKKOS_FORCEINLINE_FUNCTION A operator()(A z) const {
    const A s = A(1) - z * z * inverse_square_, open = s < A(0) ? A(0) : s;  // rounding may put z at the bound
    return root_ ? open * Kokkos::sqrt(open) : open;
  }

 private:
  A inverse_square_;
  bool root_;
};

}  // namespace sestina

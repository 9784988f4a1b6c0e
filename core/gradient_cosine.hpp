// The cosine between the gradient that an update uses and another one of the same weights that was kept.
#pragma once
#include "core/layout/arena.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

template <class Exec, class T>
class GradientCosine {
 public:
  explicit GradientCosine(const Arena<Exec, T>&);  // of one rank that owns all
  void keep(const Exec&);                          // the gradients as they are
  double with_kept(const Exec&);                   // of the gradients as they are; NaN where one is zero. Fences

 private:
  Vector<Acc<T>, Exec> gradients_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> kept_;
  HostValues<Exec> sums_;  // by piece: products, and squares of both
};

}  // namespace sestina

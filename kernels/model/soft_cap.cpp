#include "kernels/model/soft_cap.hpp"

#include "kernels/blas/row_elements.hpp"

namespace sestina {

template <class Exec, class T>
void soft_cap(const Exec& exec, SoftCap cap, Matrix<T, Exec> logits) {
  using A = Acc<T>;
  if (cap.bound <= 0) return;
  const CappedLogit<A> capped(cap);
  const int vocabulary = static_cast<int>(logits.extent(1));
  for_rows(
      "soft_cap", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        T* x = row_of(logits, row);
        each_element(
            lane, vocabulary, [&](T& z) { z = T(capped(A(z))); }, x);
      });
}

#define SESTINA_SOFT_CAP(Exec, T) template void soft_cap<Exec, T>(const Exec&, SoftCap, Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_SOFT_CAP)

}  // namespace sestina

#include "kernels/model/activation.hpp"

#include "kernels/blas/row_elements.hpp"

namespace sestina {

template <class Exec, class T>
void rope(const Exec& exec, Matrix<const float, Exec> cosine, Matrix<const float, Exec> sine, int sequence,
          int direction, Matrix<T, Exec> x) {
  using A = Acc<T>;
  const int half = static_cast<int>(cosine.extent(1));
  if (half == 0) return;
  const int heads = static_cast<int>(x.extent(1)) / (2 * half);
  const A sign = static_cast<A>(direction);
  for_rows(
      "rope", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const float *c = row_of(cosine, row % sequence), *s = row_of(sine, row % sequence);
        T* const turned = row_of(x, row);
        each_element_of_groups(
            lane, heads, half,
            [&](float cosine_of, float sine_of, T& low, T& high) {
              const A turn = sign * A(sine_of), a = A(low), b = A(high);
              low = T(a * A(cosine_of) - b * turn);
              high = T(b * A(cosine_of) + a * turn);
            },
            GroupRows(c, 0), GroupRows(s, 0), GroupRows(turned, 2 * half), GroupRows(turned + half, 2 * half));
      });
}

#define SESTINA_ROPE(Exec, T)                                                                              \
  template void rope<Exec, T>(const Exec&, Matrix<const float, Exec>, Matrix<const float, Exec>, int, int, \
                              Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_ROPE)

}  // namespace sestina

#include "kernels/blas/row_copies.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/row_elements.hpp"

namespace sestina {

template <class Exec, class T>
void copy_rows(const Exec& exec, Matrix<const T, Exec> from, bool adds, Matrix<T, Exec> to) {
  SESTINA_REQUIRE(from.extent(0) == to.extent(0) && from.extent(1) == to.extent(1), "({}, {}) into ({}, {})",
                  from.extent(0), from.extent(1), to.extent(0), to.extent(1));
  const int n = static_cast<int>(to.extent(1));
  for_rows(
      "copy_rows", exec, to.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* const in = row_of(from, row);
        T* const out = row_of(to, row);
        if (adds) {
          each_element(
              lane, n, [](const T& a, T& sum) { sum = T(Acc<T>(sum) + Acc<T>(a)); }, in, out);
        } else {
          each_element(
              lane, n, [](const T& a, T& b) { b = a; }, in, Written(out));
        }
      });
}

#define SESTINA_COPY_ROWS(Exec, T) \
  template void copy_rows<Exec, T>(const Exec&, Matrix<const T, Exec>, bool, Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_COPY_ROWS)

}  // namespace sestina

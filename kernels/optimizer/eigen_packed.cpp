#include "kernels/optimizer/eigen.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
void pack_lower(const Exec& exec, Matrix<const float, Exec> x, Vector<T, Exec> packed) {
  const std::size_t d = x.extent(0);
  SESTINA_REQUIRE(x.extent(1) == d && packed.extent(0) == packed_size(d), "({}, {}) into {} numbers", d, x.extent(1),
                  packed.extent(0));
  for_elements(
      "pack", exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        T* row = packed.data() + packed_size(i);
        for (std::size_t j = begin; j < Kokkos::min(end, i + 1); ++j) row[j] = static_cast<T>(x(i, j));
      });
}

template <class Exec, class T>
void unpack_lower(const Exec& exec, Vector<const T, Exec> packed, Matrix<float, Exec> x) {
  const std::size_t d = x.extent(0);
  SESTINA_REQUIRE(x.extent(1) == d && packed.extent(0) == packed_size(d), "{} numbers into ({}, {})", packed.extent(0),
                  d, x.extent(1));
  for_elements(
      "unpack", exec, d, d, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const T* row = packed.data() + packed_size(i);
        for (std::size_t j = begin; j < Kokkos::min(end, i + 1); ++j) x(i, j) = static_cast<float>(row[j]);
      });
  mirror_lower<Exec, float>(exec, x);
}

}  // namespace

template <class Exec>
void pack_symmetric(const Exec& exec, Matrix<const float, Exec> x, Vector<float, Exec> packed) {
  pack_lower<Exec, float>(exec, x, packed);
}
template <class Exec>
void pack_symmetric(const Exec& exec, Matrix<const float, Exec> x, Vector<bf16, Exec> packed) {
  pack_lower<Exec, bf16>(exec, x, packed);
}
template <class Exec>
void unpack_symmetric(const Exec& exec, Vector<const float, Exec> packed, Matrix<float, Exec> x) {
  unpack_lower<Exec, float>(exec, packed, x);
}
template <class Exec>
void unpack_symmetric(const Exec& exec, Vector<const bf16, Exec> packed, Matrix<float, Exec> x) {
  unpack_lower<Exec, bf16>(exec, packed, x);
}

#define SESTINA_PACKED(Exec)                                                                         \
  template void pack_symmetric<Exec>(const Exec&, Matrix<const float, Exec>, Vector<float, Exec>);   \
  template void pack_symmetric<Exec>(const Exec&, Matrix<const float, Exec>, Vector<bf16, Exec>);    \
  template void unpack_symmetric<Exec>(const Exec&, Vector<const float, Exec>, Matrix<float, Exec>); \
  template void unpack_symmetric<Exec>(const Exec&, Vector<const bf16, Exec>, Matrix<float, Exec>);
SESTINA_INSTANTIATE_LANES(SESTINA_PACKED)

}  // namespace sestina

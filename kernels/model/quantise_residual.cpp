#include "kernels/model/quantise.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {

namespace {

constexpr int step = 8;  // bits below those of the byte

// Returns the residual. The bits of floats are counted like integers: their order is that of the numbers, and distances
// hold across powers of two as well.
KOKKOS_INLINE_FUNCTION std::uint8_t residual_of(float x, bf16 rounded) {
  const auto exact = static_cast<std::int64_t>(Kokkos::bit_cast<std::uint32_t>(x)),
             kept = static_cast<std::int64_t>(rounded.bits) << 16;
  constexpr std::int64_t half = 1 << (step - 1), most = 127;
  const std::int64_t distance = (exact - kept + half) >> step;
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(distance > most    ? most
                                                            : distance < -most ? -most
                                                                               : distance));
}

KOKKOS_INLINE_FUNCTION float with_residual(bf16 value, std::uint8_t residual) {
  const std::int32_t distance = static_cast<std::int8_t>(residual) * (1 << step);
  return Kokkos::bit_cast<float>((static_cast<std::uint32_t>(value.bits) << 16) + static_cast<std::uint32_t>(distance));
}

}  // namespace

template <class Exec>
void widen_with_residual(const Exec& exec, Vector<const bf16, Exec> values, Vector<const std::uint8_t, Exec> residual,
                         Vector<float, Exec> x) {
  SESTINA_REQUIRE(values.size() == x.size() && residual.size() == x.size(), "{} values, {} residuals, {} numbers",
                  values.size(), residual.size(), x.size());
  for_elements(
      "widen", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x(i) = with_residual(values(i), residual(i));
      });
}

template <class Exec>
void put_with_residual(const Exec& exec, Matrix<const float, Exec> x, Vector<const std::int32_t, Exec> rows,
                       Vector<const std::int32_t, Exec> cols, Matrix<bf16, Exec> values,
                       Matrix<std::uint8_t, Exec> residual) {
  SESTINA_REQUIRE(rows.extent(0) == x.extent(0) && cols.extent(0) == x.extent(1) && values.extent(1) == x.extent(1) &&
                      residual.extent(1) == x.extent(1) && residual.extent(0) == values.extent(0),
                  "x ({}, {}), values (m, {}), residuals (m, {})", x.extent(0), x.extent(1), values.extent(1),
                  residual.extent(1));
  for_elements(
      "put_residual", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const float* from = &x(i, 0);
        bf16* to = &values(rows(i), 0);
        std::uint8_t* left = &residual(rows(i), 0);
        for (std::size_t j = begin; j < end; ++j) {
          const bf16 rounded(from[j]);
          to[cols(j)] = rounded;
          left[cols(j)] = residual_of(from[j], rounded);
        }
      });
}

#define SESTINA_MERGE_RESIDUAL(Exec)                                                                               \
  template void widen_with_residual<Exec>(const Exec&, Vector<const bf16, Exec>, Vector<const std::uint8_t, Exec>, \
                                          Vector<float, Exec>);                                                    \
  template void put_with_residual<Exec>(const Exec&, Matrix<const float, Exec>, Vector<const std::int32_t, Exec>,  \
                                        Vector<const std::int32_t, Exec>, Matrix<bf16, Exec>,                      \
                                        Matrix<std::uint8_t, Exec>);
SESTINA_INSTANTIATE_LANES(SESTINA_MERGE_RESIDUAL)

}  // namespace sestina

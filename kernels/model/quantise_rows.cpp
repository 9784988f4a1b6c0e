#include "kernels/model/quantise.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

template <class Exec, class A>
void encode_rows(const Exec& exec, Matrix<const A, Exec> w, const CodedRows& coded) {
  SESTINA_REQUIRE(w.extent(0) == coded.rows && w.extent(1) == coded.cols, "({}, {}) into coded rows ({}, {})",
                  w.extent(0), w.extent(1), coded.rows, coded.cols);
  const std::size_t groups = coded.groups();
  const Kokkos::RangePolicy<Exec> all(exec, 0, coded.rows * groups);
  Kokkos::parallel_for(
      "encode_rows", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t i = piece / groups, g = piece % groups, begin = g * coded.group,
                          end = Kokkos::min(begin + coded.group, coded.cols);
        float low = 0, high = 0;
        for (std::size_t j = begin; j < end; ++j) {
          low = Kokkos::fmin(low, static_cast<float>(w(i, j)));
          high = Kokkos::fmax(high, static_cast<float>(w(i, j)));
        }
        const auto grid = CodeGrid<float>::of(low, high);
        const CodedRow row = coded.row(i);
        for (std::size_t j = begin; j < end; ++j) row.codes[j] = grid.nearest(static_cast<float>(w(i, j)));
        row.scales[g] = grid.scale;
        row.zeros[g] = grid.zero;
      });
}

template <class Exec, class T>
void decode_rows(const Exec& exec, const CodedRows& coded, Matrix<T, Exec> w) {
  SESTINA_REQUIRE(w.extent(0) == coded.rows && w.extent(1) == coded.cols, "coded rows ({}, {}) into ({}, {})",
                  coded.rows, coded.cols, w.extent(0), w.extent(1));
  // Number of elements per thread: a group on a host, one on a device, whose threads then read neighbours.
  const std::size_t length = is_host<Exec> ? coded.group : 1, pieces = (coded.cols + length - 1) / length;
  const Kokkos::RangePolicy<Exec> all(exec, 0, coded.rows * pieces);
  Kokkos::parallel_for(
      "decode_rows", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t i = piece / pieces, begin = piece % pieces * length,
                          end = Kokkos::min(begin + length, coded.cols), g = begin / coded.group;
        const CodedRow row = coded.row(i);
        const CodeGrid<float> grid{row.scales[g], row.zeros[g]};
        for (std::size_t j = begin; j < end; ++j) w(i, j) = T(grid.value(row.codes[j]));
      });
}

#define SESTINA_ENCODE(Exec, A) \
  template void encode_rows<Exec, A>(const Exec&, Matrix<const A, Exec>, const CodedRows&);
#define SESTINA_DECODE(Exec, T) template void decode_rows<Exec, T>(const Exec&, const CodedRows&, Matrix<T, Exec>);
#define SESTINA_CODED_ROWS(Exec) \
  SESTINA_ENCODE(Exec, float)    \
  SESTINA_ENCODE(Exec, double)   \
  SESTINA_DECODE(Exec, float)    \
  SESTINA_DECODE(Exec, double)   \
  SESTINA_DECODE(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_CODED_ROWS)

}  // namespace sestina

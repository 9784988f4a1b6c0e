#include "kernels/model/quantise.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

namespace {

// Writes code i. The second code of a byte leaves the first one as it is; the first clears the second, written after
// it.
template <int bits>
KOKKOS_INLINE_FUNCTION void put_code(std::uint8_t* codes, std::size_t i, std::uint8_t code) {
  if constexpr (bits == 8)
    codes[i] = code;
  else if (i % 2 == 0)
    codes[i / 2] = code;
  else
    codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | code << 4);
}
template <int bits>
KOKKOS_INLINE_FUNCTION int code_at(const std::uint8_t* codes, std::size_t i) {
  if constexpr (bits == 8)
    return codes[i];
  else
    return i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
}

void require_groups(std::size_t n, std::size_t group, int bits, std::size_t codes, std::size_t scales,
                    std::size_t zeros) {
  const std::size_t groups = group_count(n, group);
  SESTINA_REQUIRE((bits == 8 || (bits == 4 && group % 2 == 0)) && codes == code_bytes(n, bits) && scales == groups &&
                      zeros == groups,
                  "{} values in groups of {} and {} bits: {} bytes of codes, {} scales, {} zeros", n, group, bits,
                  codes, scales, zeros);
}

template <int bits, class Exec, class A>
static void quantise(const Exec& exec, Vector<const A, Exec> w, std::size_t group, bool with_zero,
                     Vector<std::uint8_t, Exec> codes, Vector<A, Exec> scales, Vector<std::uint8_t, Exec> zeros) {
  using Grid = CodeGrid<A, bits>;
  const std::size_t n = w.extent(0);
  const Kokkos::RangePolicy<Exec> all(exec, 0, scales.extent(0));
  Kokkos::parallel_for(
      "quantise", all, KOKKOS_LAMBDA(std::size_t g) {
        const std::size_t begin = g * group, end = Kokkos::min(begin + group, n);
        A low = with_zero ? A(0) : w(begin), high = low;
        for (std::size_t i = begin; i < end; ++i) {
          low = Kokkos::fmin(low, w(i));
          high = Kokkos::fmax(high, w(i));
        }
        const Grid grid = Grid::of(low, high);
        for (std::size_t i = begin; i < end; ++i) put_code<bits>(codes.data(), i, grid.nearest(w(i)));
        scales(g) = grid.scale;
        zeros(g) = grid.zero;
      });
}

template <int bits, class Exec, class T>
static void dequantise(const Exec& exec, Vector<const std::uint8_t, Exec> codes, Vector<const Acc<T>, Exec> scales,
                       Vector<const std::uint8_t, Exec> zeros, std::size_t group, Vector<T, Exec> w) {
  using A = Acc<T>;
  const std::size_t n = w.extent(0), length = is_host<Exec> ? group : 1;  // elements per thread
  const Kokkos::RangePolicy<Exec> all(exec, 0, (n + length - 1) / length);
  Kokkos::parallel_for(
      "dequantise", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * length, end = Kokkos::min(begin + length, n), g = begin / group;
        const CodeGrid<A, bits> grid{scales(g), zeros(g)};
        for (std::size_t i = begin; i < end; ++i) w(i) = T(grid.value(code_at<bits>(codes.data(), i)));
      });
}

}  // namespace

template <class Exec, class A>
void group_quantise(const Exec& exec, Vector<const A, Exec> w, std::size_t group, bool with_zero,
                    Vector<std::uint8_t, Exec> codes, Vector<A, Exec> scales, Vector<std::uint8_t, Exec> zeros,
                    int bits) {
  require_groups(w.extent(0), group, bits, codes.extent(0), scales.extent(0), zeros.extent(0));
  if (bits == 8)
    quantise<8, Exec, A>(exec, w, group, with_zero, codes, scales, zeros);
  else
    quantise<4, Exec, A>(exec, w, group, with_zero, codes, scales, zeros);
}

template <class Exec, class T>
void group_dequantise(const Exec& exec, Vector<const std::uint8_t, Exec> codes, Vector<const Acc<T>, Exec> scales,
                      Vector<const std::uint8_t, Exec> zeros, std::size_t group, Vector<T, Exec> w, int bits) {
  require_groups(w.extent(0), group, bits, codes.extent(0), scales.extent(0), zeros.extent(0));
  if (bits == 8)
    dequantise<8, Exec, T>(exec, codes, scales, zeros, group, w);
  else
    dequantise<4, Exec, T>(exec, codes, scales, zeros, group, w);
}

#define SESTINA_QUANTISE(Exec, A)                                                              \
  template void group_quantise<Exec, A>(const Exec&, Vector<const A, Exec>, std::size_t, bool, \
                                        Vector<std::uint8_t, Exec>, Vector<A, Exec>, Vector<std::uint8_t, Exec>, int);
#define SESTINA_DEQUANTISE(Exec, T)                                                                                  \
  template void group_dequantise<Exec, T>(const Exec&, Vector<const std::uint8_t, Exec>, Vector<const Acc<T>, Exec>, \
                                          Vector<const std::uint8_t, Exec>, std::size_t, Vector<T, Exec>, int);
#define SESTINA_GROUPS(Exec)       \
  SESTINA_QUANTISE(Exec, float)    \
  SESTINA_QUANTISE(Exec, double)   \
  SESTINA_DEQUANTISE(Exec, float)  \
  SESTINA_DEQUANTISE(Exec, double) \
  SESTINA_DEQUANTISE(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_GROUPS)

}  // namespace sestina

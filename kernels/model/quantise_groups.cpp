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

template <class Exec, class A>
void require_groups(std::size_t n, const GroupCodes<Exec, A>& c) {
  const std::size_t groups = group_count(n, c.group), kept = c.residuals.extent(0);
  SESTINA_REQUIRE((c.bits == 8 || (c.bits == 4 && c.group % 2 == 0)) && c.codes.extent(0) == code_bytes(n, c.bits) &&
                      c.scales.extent(0) == groups && c.zeros.extent(0) == groups && (kept == 0 || kept == n),
                  "{} values in groups of {} and {} bits: {} bytes of codes, {} scales, {} zeros, {} residuals", n,
                  c.group, c.bits, c.codes.extent(0), c.scales.extent(0), c.zeros.extent(0), kept);
}

constexpr int residual_unit = 128;  // of a step

// Returns what a number is above its code, in steps of the grid.
template <class A>
KOKKOS_INLINE_FUNCTION std::uint8_t residual_of_code(A above) {
  constexpr A most = residual_unit - 1;
  const A units = Kokkos::nearbyint(above * A(residual_unit)), held = units < most ? units : most;
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(held > -most ? held : -most));
}
template <class A>
KOKKOS_INLINE_FUNCTION A steps_of(std::uint8_t residual) {
  return A(static_cast<std::int8_t>(residual)) / A(residual_unit);
}

template <int bits, class Exec, class A>
static void quantise(const Exec& exec, Vector<const A, Exec> w, bool with_zero, const GroupCodes<Exec, A>& to) {
  using Grid = CodeGrid<A, bits>;
  const std::size_t n = w.extent(0), group = to.group;
  const auto codes = to.codes, zeros = to.zeros, residuals = to.residuals;
  const auto scales = to.scales;
  const bool keeps = residuals.extent(0) > 0;
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
        for (std::size_t i = begin; keeps && i < end; ++i)
          residuals(i) = residual_of_code(grid.place(w(i)) - A(code_at<bits>(codes.data(), i)));
        scales(g) = grid.scale;
        zeros(g) = grid.zero;
      });
}

// Puts codes of 4 bits apart, so many at a time that what follows fits into vector registers.
constexpr std::size_t unpacked = 64;
KOKKOS_INLINE_FUNCTION void unpack(const std::uint8_t* codes, std::uint8_t (&apart)[unpacked]) {
  for (std::size_t j = 0; j < unpacked / 2; ++j) {
    apart[2 * j] = codes[j] & 15;
    apart[2 * j + 1] = codes[j] >> 4;
  }
}

// Returns what the code of number i stands for; `whole`: with its residual.
template <bool whole, class A, int bits>
KOKKOS_INLINE_FUNCTION A number(const CodeGrid<A, bits>& grid, int code, const std::uint8_t* residuals, std::size_t i) {
  return whole ? (A(code - grid.zero) + steps_of<A>(residuals[i])) * grid.scale : grid.value(code);
}

// Sets w (n) from number `first` on; `whole`: with their residuals.
template <int bits, bool whole, class Exec, class A, class T>
static void dequantise(const Exec& exec, const GroupCodes<Exec, A>& from, std::size_t first, Vector<T, Exec> w) {
  const std::size_t last = first + w.extent(0), length = is_host<Exec> ? from.group : 1,  // numbers per thread
      group = from.group;
  const auto codes = from.codes, zeros = from.zeros, residuals = from.residuals;
  const auto scales = from.scales;
  const Kokkos::RangePolicy<Exec> all(exec, first / length, (last + length - 1) / length);
  Kokkos::parallel_for(
      "dequantise", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = Kokkos::max(piece * length, first), end = Kokkos::min((piece + 1) * length, last),
                          g = begin / group;
        const CodeGrid<A, bits> grid{scales(g), zeros(g)};
        const std::uint8_t *const bytes = codes.data(), *const left = whole ? residuals.data() : nullptr;
        T* const to = w.data();
        std::size_t i = begin;
        if constexpr (bits == 4 && is_host<Exec>)
          for (; i % 2 == 0 && i + unpacked <= end; i += unpacked) {
            std::uint8_t apart[unpacked];
            unpack(bytes + i / 2, apart);
            for (std::size_t j = 0; j < unpacked; ++j)
              to[i + j - first] = T(number<whole>(grid, apart[j], left, i + j));
          }
        for (; i < end; ++i) to[i - first] = T(number<whole>(grid, code_at<bits>(bytes, i), left, i));
      });
}

template <bool whole, class Exec, class A, class T>
void dequantise_bits(const Exec& exec, const GroupCodes<Exec, A>& from, std::size_t first, Vector<T, Exec> w) {
  if (from.bits == 8)
    dequantise<8, whole, Exec, A, T>(exec, from, first, w);
  else
    dequantise<4, whole, Exec, A, T>(exec, from, first, w);
}

}  // namespace

template <class Exec, class A>
void group_quantise(const Exec& exec, Vector<const A, Exec> w, bool with_zero, const GroupCodes<Exec, A>& to) {
  require_groups(w.extent(0), to);
  if (to.bits == 8)
    quantise<8, Exec, A>(exec, w, with_zero, to);
  else
    quantise<4, Exec, A>(exec, w, with_zero, to);
}

template <class Exec, class T>
void group_dequantise(const Exec& exec, const GroupCodes<Exec, Acc<T>>& from, Vector<T, Exec> w) {
  require_groups(w.extent(0), from);
  dequantise_bits<false, Exec, Acc<T>, T>(exec, from, 0, w);
}

template <class Exec, class A>
void widen_codes(const Exec& exec, const GroupCodes<Exec, A>& from, std::size_t first, Vector<A, Exec> x) {
  SESTINA_REQUIRE(code_bytes(first + x.extent(0), from.bits) <= from.codes.extent(0), "numbers {} to {} of {} codes",
                  first, first + x.extent(0), from.codes.extent(0));
  if (from.residuals.extent(0) > 0)
    dequantise_bits<true, Exec, A, A>(exec, from, first, x);
  else
    dequantise_bits<false, Exec, A, A>(exec, from, first, x);
}

#define SESTINA_QUANTISE(Exec, A)                                                                              \
  template void group_quantise<Exec, A>(const Exec&, Vector<const A, Exec>, bool, const GroupCodes<Exec, A>&); \
  template void widen_codes<Exec, A>(const Exec&, const GroupCodes<Exec, A>&, std::size_t, Vector<A, Exec>);
#define SESTINA_DEQUANTISE(Exec, T) \
  template void group_dequantise<Exec, T>(const Exec&, const GroupCodes<Exec, Acc<T>>&, Vector<T, Exec>);
#define SESTINA_GROUPS(Exec)       \
  SESTINA_QUANTISE(Exec, float)    \
  SESTINA_QUANTISE(Exec, double)   \
  SESTINA_DEQUANTISE(Exec, float)  \
  SESTINA_DEQUANTISE(Exec, double) \
  SESTINA_DEQUANTISE(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_GROUPS)

}  // namespace sestina

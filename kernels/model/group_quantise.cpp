#include "kernels/model/group_quantise.hpp"

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr int most_code = 255;
constexpr double least_range = 1e-5;

template <class A>
KOKKOS_INLINE_FUNCTION std::uint8_t code_of(A x) {
  const A clamped = Kokkos::fmin(Kokkos::fmax(x, A(0)), A(most_code));
  return static_cast<std::uint8_t>(clamped);
}

}  // namespace

template <class Exec, class A>
void group_quantise(const Exec& exec, Vector<const A, Exec> w, std::size_t group, bool with_zero,
                    Vector<std::uint8_t, Exec> codes, Vector<A, Exec> scales, Vector<std::uint8_t, Exec> zeros) {
  const std::size_t n = w.extent(0), groups = group_count(n, group);
  SESTINA_REQUIRE(codes.extent(0) == n && scales.extent(0) == groups && zeros.extent(0) == groups,
                  "{} values in groups of {}: {} codes, {} scales, {} zeros", n, group, codes.extent(0),
                  scales.extent(0), zeros.extent(0));
  const Kokkos::RangePolicy<Exec> all(exec, 0, groups);
  Kokkos::parallel_for(
      "quantise", all, KOKKOS_LAMBDA(std::size_t g) {
        const std::size_t begin = g * group, end = Kokkos::min(begin + group, n);
        A low = with_zero ? A(0) : w(begin), high = low;
        for (std::size_t i = begin; i < end; ++i) {
          low = Kokkos::fmin(low, w(i));
          high = Kokkos::fmax(high, w(i));
        }
        const A scale = Kokkos::fmax(high - low, A(least_range)) / A(most_code);
        const std::uint8_t zero = code_of(-Kokkos::nearbyint(low / scale));
        for (std::size_t i = begin; i < end; ++i) codes(i) = code_of(Kokkos::nearbyint(w(i) / scale) + A(zero));
        scales(g) = scale;
        zeros(g) = zero;
      });
}

template <class Exec, class T>
void group_dequantise(const Exec& exec, Vector<const std::uint8_t, Exec> codes, Vector<const Acc<T>, Exec> scales,
                      Vector<const std::uint8_t, Exec> zeros, std::size_t group, Vector<T, Exec> w) {
  using A = Acc<T>;
  const std::size_t n = w.extent(0), groups = group_count(n, group);
  SESTINA_REQUIRE(codes.extent(0) == n && scales.extent(0) == groups && zeros.extent(0) == groups,
                  "{} values in groups of {}: {} codes, {} scales, {} zeros", n, group, codes.extent(0),
                  scales.extent(0), zeros.extent(0));
  const std::size_t length = is_host<Exec> ? group : 1;  // elements of a thread
  const Kokkos::RangePolicy<Exec> all(exec, 0, (n + length - 1) / length);
  Kokkos::parallel_for(
      "dequantise", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * length, end = Kokkos::min(begin + length, n), g = begin / group;
        const A scale = scales(g);
        const int zero = zeros(g);
        for (std::size_t i = begin; i < end; ++i) w(i) = T(A(int(codes(i)) - zero) * scale);
      });
}

#define SESTINA_QUANTISE(Exec, A)                                                              \
  template void group_quantise<Exec, A>(const Exec&, Vector<const A, Exec>, std::size_t, bool, \
                                        Vector<std::uint8_t, Exec>, Vector<A, Exec>, Vector<std::uint8_t, Exec>);
#define SESTINA_DEQUANTISE(Exec, T)                                                                                  \
  template void group_dequantise<Exec, T>(const Exec&, Vector<const std::uint8_t, Exec>, Vector<const Acc<T>, Exec>, \
                                          Vector<const std::uint8_t, Exec>, std::size_t, Vector<T, Exec>);
#define SESTINA_GROUPS(Exec)       \
  SESTINA_QUANTISE(Exec, float)    \
  SESTINA_QUANTISE(Exec, double)   \
  SESTINA_DEQUANTISE(Exec, float)  \
  SESTINA_DEQUANTISE(Exec, double) \
  SESTINA_DEQUANTISE(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_GROUPS)

}  // namespace sestina

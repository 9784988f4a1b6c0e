#include "kernels/blas/machine_peak.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {
namespace {

// Returns the seconds of the shortest of several runs: what the machine can do when nothing disturbs it.
template <class Exec, class Function>
double shortest(const Exec& exec, Function&& run) {
  using clock = std::chrono::steady_clock;
  run();  // set-up and first touch
  exec.fence();
  double best = 1e30;
  const auto stop = clock::now() + std::chrono::milliseconds(250);
  for (int repeat = 0; repeat < 3 || (repeat < 50 && clock::now() < stop); ++repeat) {
    const auto start = clock::now();
    run();
    exec.fence();
    best = std::min(best, std::chrono::duration<double>(clock::now() - start).count());
  }
  return best;
}

// Measures a square product large enough to reach the peak and to keep every thread busy.
template <class T, class Exec>
double gemm_tflops(const Exec& exec) {
  constexpr std::size_t n = is_host<Exec> ? 2048 : 8192;
  const Kokkos::View<T**, Kokkos::LayoutRight, typename Exec::memory_space> a("a", n, n), b("b", n, n), c("c", n, n);
  Kokkos::deep_copy(exec, a, T(0.5f));
  Kokkos::deep_copy(exec, b, T(0.25f));
  Gemm<Exec> gemm(exec);
  const double seconds = shortest(exec, [&] {
    gemm.template operator()<T, T>(Op::none, Op::transpose, Acc<T>(1), Matrix<const T, Exec>(a.data(), n, n),
                                   Matrix<const T, Exec>(b.data(), n, n), Acc<T>(0), Matrix<T, Exec>(c.data(), n, n));
  });
  return 2e-12 * double(n) * double(n) * double(n) / seconds;
}

// Returns the number of doubles in each vector of the triad.
template <class Exec>
std::size_t triad_size() {
  constexpr long least = 64L << 20, most = 512L << 20;  // bytes
  if constexpr (!is_host<Exec>) return std::size_t{256} << 17;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or -1 where unknown
  return static_cast<std::size_t>(std::clamp(4 * cache, least, most)) / sizeof(double);
}

template <class Exec>
using Values = Kokkos::View<double*, typename Exec::memory_space>;

template <class Exec>
void triad(const Exec& exec, const Values<Exec>& a, const Values<Exec>& b, const Values<Exec>& c) {
  const Kokkos::RangePolicy<Exec> all(exec, 0, a.extent(0));
  Kokkos::parallel_for(
      "sestina::triad", all, KOKKOS_LAMBDA(std::size_t i) { a(i) = b(i) + 0.5 * c(i); });
}

template <class Exec>
double triad_gbs(const Exec& exec) {
  const std::size_t n = triad_size<Exec>();
  const Values<Exec> a("a", n), b("b", n), c("c", n);
  const double seconds = shortest(exec, [&] { triad(exec, a, b, c); });
  return 3e-9 * sizeof(double) * double(n) / seconds;
}

}  // namespace

template <class Exec>
MachinePeak measure_machine_peak(const Exec& exec) {
  MachinePeak peak;
  if (!is_host<Exec> || has_bf16_products(bf16_way())) peak.gemm_bf16_tflops = gemm_tflops<bf16>(exec);
  peak.gemm_fp32_tflops = gemm_tflops<float>(exec);
  peak.memory_gbs = triad_gbs(exec);
  return peak;
}

#define SESTINA_MACHINE_PEAK(Exec) template MachinePeak measure_machine_peak<Exec>(const Exec&);
SESTINA_INSTANTIATE_SPACES(SESTINA_MACHINE_PEAK)

}  // namespace sestina

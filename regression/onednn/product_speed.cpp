// GFLOP/s of products on the host by shape and type, each next to fp32, which bounds what is widened, and next to the
// product with fixed bits that a deterministic run takes.
//   product_speed [threads]
// The machine should be idle. Shapes: the linear layers of models of width 768 and 256 on 1024
// tokens, logits, and tiles.
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace {

using namespace sestina;

struct Shape {
  const char* name;
  Op op_a, op_b;
  std::size_t m, n, k;
};

template <class T>
using Values = Kokkos::View<T**, Kokkos::LayoutRight, Kokkos::HostSpace>;

// The best of some runs within half a second.
template <class TA, class TC>
double gflops(Gemm<Host>& gemm, const Shape& s) {
  const bool plain_a = s.op_a == Op::none, plain_b = s.op_b == Op::none;
  const Values<TA> a("a", plain_a ? s.m : s.k, plain_a ? s.k : s.m), b("b", plain_b ? s.k : s.n, plain_b ? s.n : s.k);
  const Values<TC> c("c", s.m, s.n);
  Kokkos::deep_copy(a, TA(0.5f));
  Kokkos::deep_copy(b, TA(0.25f));
  using clock = std::chrono::steady_clock;
  double best = 1e30;
  const auto stop = clock::now() + std::chrono::milliseconds(500);
  for (int i = 0; i < 4 || (i < 200 && clock::now() < stop); ++i) {
    const auto start = clock::now();
    gemm.operator()<TA, TC>(s.op_a, s.op_b, Acc<TA>(1), Matrix<const TA, Host>(a.data(), a.extent(0), a.extent(1)),
                            Matrix<const TA, Host>(b.data(), b.extent(0), b.extent(1)), Acc<TA>(0),
                            Matrix<TC, Host>(c.data(), s.m, s.n));
    if (i > 0) best = std::min(best, std::chrono::duration<double>(clock::now() - start).count());
  }
  return 2e-9 * double(s.m) * double(s.n) * double(s.k) / best;
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  const Kokkos::ScopeGuard kokkos(settings);
  constexpr Op N = Op::none, T = Op::transpose;
  constexpr Shape shapes[] = {{"square", N, T, 2048, 2048, 2048},
                              {"forward", N, T, 1024, 768, 768},
                              {"input gradient", N, N, 1024, 768, 768},
                              {"weight gradient", T, N, 768, 768, 1024},
                              {"logits", N, T, 1024, 32000, 768},
                              {"gradient of logits", N, N, 1024, 768, 32000},
                              {"width 256, forward", N, T, 1024, 768, 256},
                              {"width 256, input", N, N, 1024, 256, 768},
                              {"width 256, weight", T, N, 256, 256, 1024},
                              {"tile", N, T, 256, 256, 1024},
                              {"tile, transposed", T, N, 256, 256, 1024},
                              {"small", N, T, 128, 64, 64},
                              {"few rows", N, T, 8, 2048, 2048}};
  Gemm<Host> gemm{Host()}, fixed{Host(), true};
  std::printf("%s; %s; %d threads\n%-20s %18s %10s %10s %10s %12s %12s\n", instruction_set().c_str(),
              std::string(to_text(bf16_way())).c_str(), threads_of(Host()), "GFLOP/s", "m x n x k", "fp32", "bf16",
              "ratio", "fixed fp32", "fixed bf16");
  for (const Shape& s : shapes) {
    const bool gradient = s.op_a == T;
    const auto narrow_of = [&](Gemm<Host>& products) {
      return gradient ? gflops<bf16, float>(products, s) : gflops<bf16, bf16>(products, s);
    };
    const double wide = gflops<float, float>(gemm, s), narrow = narrow_of(gemm),
                 fixed_wide = gflops<float, float>(fixed, s), fixed_narrow = narrow_of(fixed);
    std::printf("%-20s %18s %10.1f %10.1f %10.2f %12.1f %12.1f\n", s.name,
                (std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k)).c_str(), wide, narrow,
                narrow / wide, fixed_wide, fixed_narrow);
  }
}

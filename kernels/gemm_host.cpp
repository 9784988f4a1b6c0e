// Gemm on host threads: shape checks, fixed tiles of the deterministic mode, timing. The products themselves are
// Library's (gemm_onednn.cpp or gemm_openblas.cpp).
#include "kernels/gemm.hpp"
#include "kernels/gemm_host.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "kernels/error.hpp"

namespace sestina {
namespace {

using host::GemmTypes;
using host::Operands;
using host::Product;

// Output tile of the deterministic mode. Its size depends on nothing, so neither do the bits.
constexpr std::int64_t tile_rows = 256, tile_cols = 256;

// OpenMP's thread count for the calling thread, as long as this lives: the libraries ask OpenMP how many to use.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(omp_get_max_threads()) {
    if (count != before_) omp_set_num_threads(count);
  }
  ~ThreadCount() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

// exec.concurrency() of Kokkos 4 with its deprecated code speaks of the default instance, whatever exec is.
template <class Exec>
int threads_of(const Exec& exec) {
  if constexpr (requires { Exec::concurrency(exec); })
    return Exec::concurrency(exec);
  else
    return exec.concurrency();
}

template <class TA, class TC>
constexpr GemmTypes types_of() {
  if constexpr (std::is_same_v<TA, double>) return GemmTypes::f64;
  if constexpr (std::is_same_v<TA, float>) return GemmTypes::f32;
  return std::is_same_v<TC, bf16> ? GemmTypes::bf16 : GemmTypes::bf16_to_f32;
}

struct ElementSize {
  std::size_t in, out;
};

ElementSize element_size(GemmTypes types) {
  switch (types) {
    case GemmTypes::f32:
      return {4, 4};
    case GemmTypes::f64:
      return {8, 8};
    case GemmTypes::bf16:
      return {2, 2};
    case GemmTypes::bf16_to_f32:
      return {2, 4};
  }
  return {0, 0};
}

// The part of the product that makes the tile of C with corner (row, col).
Operands tile_operands(const Product& p, const Operands& x, std::int64_t row, std::int64_t col) {
  const ElementSize size = element_size(p.types);
  const std::int64_t a = p.op_a == Op::none ? row * p.lda : row;
  const std::int64_t b = p.op_b == Op::none ? col : col * p.ldb;
  return {x.alpha, static_cast<const char*>(x.a) + a * size.in, static_cast<const char*>(x.b) + b * size.in,
          static_cast<char*>(x.c) + (row * p.ldc + col) * size.out};
}

template <class TC, class Exec>
void clear(Matrix<TC, Exec> c) {
  for (std::size_t row = 0; row < c.extent(0); ++row) std::fill_n(&c(row, 0), c.extent(1), TC{});
}

}  // namespace

template <>
struct Gemm<Host>::State {
  Host exec;
  bool deterministic = false;
  bool timing = false;
  Count count;
  std::vector<host::Library> lanes;  // one per thread in deterministic mode, else one

  void run_tiles(const Product& p, const Operands& x) {
    const std::int64_t cols = (p.n + tile_cols - 1) / tile_cols;
    const std::int64_t tiles = (p.m + tile_rows - 1) / tile_rows * cols;
    const int threads = static_cast<int>(lanes.size());
    std::exception_ptr error;
#pragma omp parallel num_threads(threads)
    {
      const ThreadCount one(1);
      // A fixed share per thread: each meets its shapes in the first call and allocates nothing afterwards.
      for (std::int64_t tile = omp_get_thread_num(); tile < tiles; tile += omp_get_num_threads()) try {
          const std::int64_t row = tile / cols * tile_rows, col = tile % cols * tile_cols;
          Product part = p;
          part.m = std::min(tile_rows, p.m - row);
          part.n = std::min(tile_cols, p.n - col);
          lanes[omp_get_thread_num()].run(part, tile_operands(p, x, row, col));
        } catch (...) {
#pragma omp critical(sestina_gemm_error)
          error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
  }

  void run(const Product& p, const Operands& x) {
    if (deterministic) return run_tiles(p, x);
    const ThreadCount all(threads_of(exec));
    lanes[0].run(p, x);
  }
};

template <>
Gemm<Host>::Gemm(const Host& exec, bool deterministic) : state_(std::make_unique<State>()) {
  state_->exec = exec;
  state_->deterministic = deterministic;
  state_->lanes.resize(deterministic ? threads_of(exec) : 1);
}
template <>
Gemm<Host>::~Gemm() = default;
template <>
Gemm<Host>::Gemm(Gemm&&) noexcept = default;

template <>
template <class TA, class TC>
void Gemm<Host>::operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Host> a, Matrix<const TA, Host> b,
                            Acc<TA> beta, Matrix<TC, Host> c) {
  const bool plain_a = op_a == Op::none, plain_b = op_b == Op::none;
  const std::size_t m = a.extent(plain_a ? 0 : 1), k = a.extent(plain_a ? 1 : 0), n = b.extent(plain_b ? 1 : 0);
  SESTINA_REQUIRE(b.extent(plain_b ? 0 : 1) == k && c.extent(0) == m && c.extent(1) == n,
                  "product of A ({}, {}){} and B ({}, {}){} into C ({}, {})", a.extent(0), a.extent(1),
                  plain_a ? "" : "^T", b.extent(0), b.extent(1), plain_b ? "" : "^T", c.extent(0), c.extent(1));
  SESTINA_REQUIRE(beta == 0 || beta == 1, "beta is {}, allowed: 0, 1", beta);
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0) {
    if (beta == 0) clear<TC, Host>(c);
    return;
  }
  const auto leading = [](const auto& x) { return static_cast<std::int64_t>(std::max(x.stride(0), x.extent(1))); };
  const Product product{
      types_of<TA, TC>(), op_a,       op_b,       beta == 1, alpha != 1, std::int64_t(m), std::int64_t(n),
      std::int64_t(k),    leading(a), leading(b), leading(c)};
  state_->count.flops += 2.0 * double(m) * double(n) * double(k);
  const Operands operands{alpha, a.data(), b.data(), c.data()};
  if (!state_->timing) return state_->run(product, operands);
  state_->exec.fence("sestina::Gemm");
  const auto start = std::chrono::steady_clock::now();
  state_->run(product, operands);
  state_->count.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <>
void Gemm<Host>::time_products(bool on) {
  state_->timing = on;
}
template <>
Gemm<Host>::Count Gemm<Host>::take_count() {
  return std::exchange(state_->count, Count{});
}

#define SESTINA_GEMM(TA, TC)                                                                                    \
  template void Gemm<Host>::operator()<TA, TC>(Op, Op, Acc<TA>, Matrix<const TA, Host>, Matrix<const TA, Host>, \
                                               Acc<TA>, Matrix<TC, Host>);
SESTINA_GEMM(float, float)
SESTINA_GEMM(double, double)
SESTINA_GEMM(bf16, bf16)
SESTINA_GEMM(bf16, float)

}  // namespace sestina

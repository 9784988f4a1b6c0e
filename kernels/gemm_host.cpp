// Gemm on host threads or one of them: shape checks, fixed tiles of the deterministic mode and of symmetric results,
// timing. The products themselves are Library's (gemm_onednn.cpp or gemm_openblas.cpp).
#include "kernels/gemm_host.hpp"
#include "kernels/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "kernels/error.hpp"
#include "kernels/thread_count.hpp"

namespace sestina {
namespace {

using host::GemmTypes;
using host::Operands;
using host::Product;

// Output tile of the deterministic mode. Its size depends on nothing, so neither do the bits.
constexpr std::int64_t tile_size = 256;

// Output tile of a symmetric result: small enough that little above the diagonal is computed, large enough for a
// library to run at its full speed. By the size of the matrix alone, so that the bits do not depend on the thread
// count.
constexpr std::int64_t symmetric_tile(std::int64_t m) {
  constexpr std::int64_t medium = 512, large = 1024;
  return m < medium ? 64 : m < large ? 128 : tile_size;
}

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
void scale(Matrix<TC, Exec> c, double beta) {
  for (std::size_t row = 0; row < c.extent(0); ++row)
    for (std::size_t col = 0; col < c.extent(1); ++col)
      c(row, col) = beta == 0 ? TC{} : TC(beta * static_cast<double>(c(row, col)));
}

// Copies what lies below the diagonal of C (m, m) above it, for the rows of one tile at a time.
template <class TC>
void mirror_rows(TC* c, std::int64_t leading, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t block = 32;  // a block read by columns stays in the first-level cache
  for (std::int64_t col = 0; col < end; col += block)
    for (std::int64_t row = std::max(begin, col); row < end; ++row)
      for (std::int64_t j = col; j < std::min({col + block, row, end}); ++j)
        c[j * leading + row] = c[row * leading + j];
}

}  // namespace

template <class Exec>
struct Gemm<Exec>::State {
  Exec exec;
  bool deterministic = false;
  bool timing = false;
  Count count;
  std::vector<host::Library> lanes;  // one per thread

  // body(lane, item) for each item, by all threads. A fixed share per thread: each meets its shapes in the first call
  // and allocates nothing afterwards.
  template <class Body>
  void on_lanes(std::int64_t items, Body&& body) {
    const int threads = static_cast<int>(lanes.size());
    if (threads == 1) {
      const ThreadCount one(1);
      for (std::int64_t item = 0; item < items; ++item) body(lanes[0], item);
      return;
    }
    std::exception_ptr error;
#pragma omp parallel num_threads(threads)
    {
      const ThreadCount one(1);
      for (std::int64_t item = omp_get_thread_num(); item < items; item += omp_get_num_threads()) try {
          body(lanes[omp_get_thread_num()], item);
        } catch (...) {
#pragma omp critical(sestina_gemm_error)
          error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
  }

  static void run_tile(host::Library& lane, const Product& p, const Operands& x, std::int64_t row, std::int64_t col,
                       std::int64_t size) {
    Product part = p;
    part.m = std::min(size, p.m - row);
    part.n = std::min(size, p.n - col);
    lane.run(part, tile_operands(p, x, row, col));
  }

  void run_tiles(const Product& p, const Operands& x) {
    const std::int64_t cols = (p.n + tile_size - 1) / tile_size, rows = (p.m + tile_size - 1) / tile_size;
    on_lanes(rows * cols, [&](host::Library& lane, std::int64_t tile) {
      run_tile(lane, p, x, tile / cols * tile_size, tile % cols * tile_size, tile_size);
    });
  }

  template <class TC>
  void run_symmetric(const Product& p, const Operands& x) {
    const std::int64_t size = symmetric_tile(p.m), rows = (p.m + size - 1) / size;
    on_lanes(rows * (rows + 1) / 2, [&](host::Library& lane, std::int64_t tile) {
      std::int64_t row = 0;
      for (; tile > row; ++row) tile -= row + 1;
      run_tile(lane, p, x, row * size, tile * size, size);
    });
    on_lanes(rows, [&](host::Library&, std::int64_t row) {
      mirror_rows(static_cast<TC*>(x.c), p.ldc, row * size, std::min((row + 1) * size, p.m));
    });
  }

  void run(const Product& p, const Operands& x) {
    if (deterministic) return run_tiles(p, x);
    const ThreadCount all(threads_of(exec));
    lanes[0].run(p, x);
  }

  // run(), timed where that is wished for.
  template <class Run>
  void timed(double flops, Run&& run) {
    count.flops += flops;
    if (!timing) return run();
    exec.fence("sestina::Gemm");
    const auto start = std::chrono::steady_clock::now();
    run();
    count.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

template <class Exec>
Gemm<Exec>::Gemm(const Exec& exec, bool deterministic) : state_(std::make_unique<State>()) {
  state_->exec = exec;
  state_->deterministic = deterministic;
  state_->lanes.resize(threads_of(exec));
}
template <class Exec>
Gemm<Exec>::~Gemm() = default;
template <class Exec>
Gemm<Exec>::Gemm(Gemm&&) noexcept = default;

namespace {

template <class View>
std::int64_t leading(const View& x) {
  return static_cast<std::int64_t>(std::max(x.stride(0), x.extent(1)));
}

}  // namespace

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a, Matrix<const TA, Exec> b,
                            Acc<TA> beta, Matrix<TC, Exec> c) {
  const bool plain_a = op_a == Op::none, plain_b = op_b == Op::none;
  const std::size_t m = a.extent(plain_a ? 0 : 1), k = a.extent(plain_a ? 1 : 0), n = b.extent(plain_b ? 1 : 0);
  SESTINA_REQUIRE(b.extent(plain_b ? 0 : 1) == k && c.extent(0) == m && c.extent(1) == n,
                  "product of A ({}, {}){} and B ({}, {}){} into C ({}, {})", a.extent(0), a.extent(1),
                  plain_a ? "" : "^T", b.extent(0), b.extent(1), plain_b ? "" : "^T", c.extent(0), c.extent(1));
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0) return scale<TC, Exec>(c, static_cast<double>(beta));
  const Product product{types_of<TA, TC>(),
                        op_a,
                        op_b,
                        static_cast<double>(beta),
                        alpha != 1,
                        std::int64_t(m),
                        std::int64_t(n),
                        std::int64_t(k),
                        leading(a),
                        leading(b),
                        leading(c)};
  const Operands operands{alpha, a.data(), b.data(), c.data()};
  state_->timed(2.0 * double(m) * double(n) * double(k), [&] { state_->run(product, operands); });
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::symmetric(Op op, Acc<TA> alpha, Matrix<const TA, Exec> a, Acc<TA> beta, Matrix<TC, Exec> c) {
  const bool plain = op == Op::none;
  const std::size_t m = a.extent(plain ? 0 : 1), k = a.extent(plain ? 1 : 0);
  SESTINA_REQUIRE(c.extent(0) == m && c.extent(1) == m, "symmetric product of A ({}, {}){} into C ({}, {})",
                  a.extent(0), a.extent(1), plain ? "" : "^T", c.extent(0), c.extent(1));
  if (m == 0) return;
  if (k == 0 || alpha == 0) return scale<TC, Exec>(c, static_cast<double>(beta));
  const Product product{types_of<TA, TC>(),
                        op,
                        plain ? Op::transpose : Op::none,
                        static_cast<double>(beta),
                        alpha != 1,
                        std::int64_t(m),
                        std::int64_t(m),
                        std::int64_t(k),
                        leading(a),
                        leading(a),
                        leading(c)};
  const Operands operands{alpha, a.data(), a.data(), c.data()};
  state_->timed(double(m) * double(m) * double(k), [&] { state_->template run_symmetric<TC>(product, operands); });
}

template <class Exec>
void Gemm<Exec>::time_products(bool on) {
  state_->timing = on;
}
template <class Exec>
typename Gemm<Exec>::Count Gemm<Exec>::take_count() {
  return std::exchange(state_->count, Count{});
}

#define SESTINA_GEMM_TYPES(Exec, TA, TC)                                                                        \
  template void Gemm<Exec>::operator()<TA, TC>(Op, Op, Acc<TA>, Matrix<const TA, Exec>, Matrix<const TA, Exec>, \
                                               Acc<TA>, Matrix<TC, Exec>);                                      \
  template void Gemm<Exec>::symmetric<TA, TC>(Op, Acc<TA>, Matrix<const TA, Exec>, Acc<TA>, Matrix<TC, Exec>);
#define SESTINA_GEMM(Exec)                 \
  template class Gemm<Exec>;               \
  SESTINA_GEMM_TYPES(Exec, float, float)   \
  SESTINA_GEMM_TYPES(Exec, double, double) \
  SESTINA_GEMM_TYPES(Exec, bf16, bf16)     \
  SESTINA_GEMM_TYPES(Exec, bf16, float)
SESTINA_GEMM(Host)
SESTINA_GEMM(Serial)

}  // namespace sestina

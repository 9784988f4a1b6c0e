// Gemm on host threads or one of them: shape checks, fixed tiles of the deterministic mode and of symmetric results,
// timing. The products themselves are Library's (gemm_onednn.cpp or gemm_openblas.cpp).
#include "kernels/blas/host/gemm_host.hpp"
#include "kernels/blas/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/thread_count.hpp"
#include "kernels/blas/host/group_shares.hpp"
#include "kernels/blas/product_sizes.hpp"

namespace sestina {
namespace {

using host::GemmTypes;
using host::Operands;
using host::Product;

// The tiles of a deterministic product, whose shape is that of the product's alone, so that the bits do not depend on
// the threads. Rows of activations (A as it is) are cut at multiples of product_tile, however many there are: a
// position has the same bits in any window (core/decoder.hpp). Gradients of weights (A transposed) have few rows and
// columns and long sums: smaller tiles give all threads some.
struct Tiles {
  std::int64_t rows = product_tile, cols = product_tile, across = 0, count = 0;
};
Tiles tiles_of(const Product& p) {
  constexpr std::int64_t enough = 16, least = 64;
  Tiles tiles;
  const auto cut = [&] {
    tiles.across = (p.n + tiles.cols - 1) / tiles.cols;
    tiles.count = tiles.across * ((p.m + tiles.rows - 1) / tiles.rows);
  };
  cut();
  while (p.op_a == Op::transpose && tiles.count < enough && std::max(tiles.rows, tiles.cols) > least) {
    (tiles.rows < tiles.cols ? tiles.cols : tiles.rows) /= 2;
    cut();
  }
  return tiles;
}

// A symmetric result is computed in column strips, from the diagonal down: little above the diagonal is computed, and a
// library packs each strip of B once. Measured on Zen 4 with oneDNN, a strip of 96 columns is best in bf16 from 192 to
// 2048, 128 in fp32; square tiles of 64 to 256 take a tenth longer. Strips are cut into pieces of so many rows, for the
// threads. The size of the matrix alone decides, so that the bits do not depend on the threads.
constexpr std::int64_t strip_rows = 768, one_strip = 128;
constexpr std::int64_t strip_cols(GemmTypes types) { return host::reads_bf16(types) ? 96 : 128; }

struct Piece {
  std::int64_t row, col, rows, cols;
};

// The pieces of an m x m result by thread: the longest first, each given to the thread that has least to do.
using PieceShares = std::vector<std::vector<Piece>>;
PieceShares share_pieces(std::int64_t m, std::int64_t width, std::size_t threads) {
  std::vector<Piece> pieces;
  for (std::int64_t col = 0; col < m; col += width)
    for (std::int64_t row = col; row < m; row += strip_rows)
      pieces.push_back({row, col, std::min(strip_rows, m - row), std::min(width, m - col)});
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.rows * a.cols > b.rows * b.cols; });
  PieceShares shares(threads);
  std::vector<std::int64_t> loads(threads);
  for (const Piece& piece : pieces) {
    const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
    loads[least] += piece.rows * piece.cols;
    shares[least].push_back(piece);
  }
  return shares;
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

// Returns a product by the shapes of its operands.
template <class TA, class TC, class Exec>
Product describe(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a, Matrix<const TA, Exec> b, Acc<TA> beta,
                 Matrix<TC, Exec> c) {
  const auto [m, n, k] = product_sizes(op_a, op_b, a, b, c);
  return {types_of<TA, TC>(),
          op_a,
          op_b,
          static_cast<double>(beta),
          alpha != 1,
          std::int64_t(m),
          std::int64_t(n),
          std::int64_t(k),
          leading_dimension(a),
          leading_dimension(b),
          leading_dimension(c)};
}

double operations(const Product& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

// Returns the operands of the product that makes the tile of C with corner (row, col).
Operands tile_operands(const Product& p, const Operands& x, std::int64_t row, std::int64_t col) {
  const ElementSize size = element_size(p.types);
  const std::int64_t a = p.op_a == Op::none ? row * p.lda : row;
  const std::int64_t b = p.op_b == Op::none ? col : col * p.ldb;
  return {x.alpha, static_cast<const char*>(x.a) + a * size.in, static_cast<const char*>(x.b) + b * size.in,
          static_cast<char*>(x.c) + (row * p.ldc + col) * size.out};
}

// Scales a matrix with as many rows and columns as c that lies `offset` elements after it.
template <class TC, class Exec>
void scale(Matrix<TC, Exec> c, double beta, std::size_t offset = 0) {
  for (std::size_t row = 0; row < c.extent(0); ++row)
    for (std::size_t col = 0; col < c.extent(1); ++col) {
      TC& x = (&c(row, col))[offset];
      x = beta == 0 ? TC{} : TC(beta * static_cast<double>(x));
    }
}

// Copies the elements of a piece that lie below the diagonal to above it, in blocks: they are read and written by rows
// and transposed in the first-level cache.
template <class TC>
void mirror(TC* c, std::int64_t leading, const Piece& piece) {
  constexpr std::int64_t block = 32;
  TC transposed[block][block];
  const std::int64_t row_end = piece.row + piece.rows, col_end = piece.col + piece.cols;
  for (std::int64_t row = piece.row; row < row_end; row += block)
    for (std::int64_t col = piece.col; col < std::min(col_end, row + block); col += block) {
      const std::int64_t rows = std::min(block, row_end - row), cols = std::min(block, col_end - col);
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < cols; ++j) transposed[j][i] = c[(row + i) * leading + col + j];
      for (std::int64_t j = 0; j < cols; ++j)
        for (std::int64_t i = std::max<std::int64_t>(0, col + j - row); i < rows; ++i)
          c[(col + j) * leading + row + i] = transposed[j][i];
    }
}

}  // namespace

template <class Exec>
struct Gemm<Exec>::State {
  Exec exec;
  bool deterministic = false;
  bool timing = false;
  Count count;
  std::vector<host::Library> lanes;  // one per thread
  std::vector<Gemm<Serial>> alone;   // one per thread, for items that take several products
  // The shares of symmetric results seen so far, by size and width of strip.
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, PieceShares>> symmetric;
  // The products of a group, what each is of work, and who computes it; kept, so that they grow seldom.
  std::vector<std::pair<Product, Operands>> group;
  std::vector<double> work;
  host::GroupShares shares;

  // Calls body(lane, item) for each item, by all threads. Each thread has a fixed share: it meets its shapes in the
  // first call and allocates nothing afterwards.
  template <class Body>
  void by_all_threads(std::int64_t items, Body&& body) {
    const int threads = static_cast<int>(lanes.size());
    if (threads == 1) {
      const ThreadCount one(1);
      for (std::int64_t item = 0; item < items; ++item) body(0, item);
      return;
    }
    std::exception_ptr error;
#pragma omp parallel num_threads(threads)
    {
      const ThreadCount one(1);
      for (std::int64_t item = omp_get_thread_num(); item < items; item += omp_get_num_threads()) try {
          body(omp_get_thread_num(), item);
        } catch (...) {
#pragma omp critical(sestina_gemm_error)
          error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
  }
  template <class Body>
  void on_lanes(std::int64_t items, Body&& body) {
    by_all_threads(items, [&](int lane, std::int64_t item) { body(lanes[static_cast<std::size_t>(lane)], item); });
  }

  static void run_piece(host::Library& lane, const Product& p, const Operands& x, const Piece& piece) {
    Product part = p;
    part.m = piece.rows;
    part.n = piece.cols;
    lane.run(part, tile_operands(p, x, piece.row, piece.col));
  }

  static void run_tile(host::Library& lane, const Product& p, const Operands& x, const Tiles& tiles,
                       std::int64_t tile) {
    const std::int64_t row = tile / tiles.across * tiles.rows, col = tile % tiles.across * tiles.cols;
    run_piece(lane, p, x, {row, col, std::min(tiles.rows, p.m - row), std::min(tiles.cols, p.n - col)});
  }
  // Runs a product whose bits do not depend on the threads: by sums that do not either, or in fixed tiles.
  void run_fixed(const Product& p, const Operands& x) {
    {
      const ThreadCount all(threads_of(exec));
      if (lanes[0].run_packed(p, x)) return;
    }
    const Tiles tiles = tiles_of(p);
    on_lanes(tiles.count, [&](host::Library& lane, std::int64_t tile) { run_tile(lane, p, x, tiles, tile); });
  }

  // Runs `count` products of one shape; operands(i) are those of product i.
  template <class Each>
  void run_batch(std::int64_t count, const Product& p, const Each& operands) {
    if (!fills(static_cast<std::size_t>(count), lanes.size())) {
      for (std::int64_t i = 0; i < count; ++i) run(p, operands(i));
      return;
    }
    on_lanes(count, [&](host::Library& lane, std::int64_t i) {
      if (!deterministic) return lane.run(p, operands(i));
      if (lane.run_packed(p, operands(i))) return;
      const Tiles tiles = tiles_of(p);
      for (std::int64_t tile = 0; tile < tiles.count; ++tile) run_tile(lane, p, operands(i), tiles, tile);
    });
  }

  const PieceShares& shares_of(const Product& p) {
    const std::pair key(p.m, p.m <= one_strip ? p.m : strip_cols(p.types));
    for (const auto& [known, shares] : symmetric)
      if (known == key) return shares;
    return symmetric.emplace_back(key, share_pieces(key.first, key.second, lanes.size())).second;
  }

  template <class TC>
  void run_symmetric(const Product& p, const Operands& x) {
    const PieceShares& shares = shares_of(p);
    on_lanes(static_cast<std::int64_t>(shares.size()), [&](host::Library& lane, std::int64_t share) {
      for (const Piece& piece : shares[share]) {
        run_piece(lane, p, x, piece);
        mirror(static_cast<TC*>(x.c), p.ldc, piece);  // no other piece reads or writes what this one does
      }
    });
  }

  void run(const Product& p, const Operands& x) {
    if (deterministic) return run_fixed(p, x);
    const ThreadCount all(threads_of(exec));
    lanes[0].run(p, x);
  }

  // Runs a product of a group in parts that have a power of two of the rows of A: a library prepares each product when
  // its shape is first seen, and few are ever seen, however many rows there are. The rows alone decide about the bits.
  // Where nothing is prepared, rows stay together, and B is packed once.
  void run_by_rows(const Product& p, const Operands& x) {
    const ElementSize size = element_size(p.types);
    const bool plain = p.op_a == Op::none;
    if (plain && host::is_packed(p.types, deterministic)) return run(p, x);
    const std::int64_t rows = plain ? p.m : p.k;
    for (std::int64_t begin = 0, next = 0; begin < rows; begin = next) {
      next = begin + static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows - begin)));
      Product part = p;
      Operands at = x;
      (plain ? part.m : part.k) = next - begin;
      at.a = static_cast<const char*>(x.a) + begin * p.lda * size.in;
      if (plain) {
        at.c = static_cast<char*>(x.c) + begin * p.ldc * size.out;
      } else {
        at.b = static_cast<const char*>(x.b) + begin * (p.op_b == Op::none ? p.ldb : 1) * size.in;
        if (begin > 0) part.beta = 1;
      }
      run(part, at);
    }
  }
  void run_group() {
    if (lanes.size() == 1) {
      for (const auto& [product, operands] : group) run_by_rows(product, operands);
      return;
    }
    host::share_group(work, lanes.size(), shares);
    for (std::size_t i = 0; i < shares.together; ++i) {
      const auto& [product, operands] = group[shares.order[i]];
      run_by_rows(product, operands);
    }
    if (shares.together == group.size()) return;
    by_all_threads(static_cast<std::int64_t>(lanes.size()), [&](int lane, std::int64_t share) {
      for (std::size_t i = shares.together; i < group.size(); ++i) {
        if (shares.thread[i] != static_cast<std::size_t>(share)) continue;
        const auto& [product, operands] = group[shares.order[i]];
        alone[static_cast<std::size_t>(lane)].state_->run_by_rows(product, operands);
      }
    });
  }

  // Calls run(), timed where that is asked for.
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
  if constexpr (!std::is_same_v<Exec, Serial>)
    while (state_->alone.size() < state_->lanes.size())
      state_->alone.emplace_back(Serial(Kokkos::NewInstance{}), deterministic);
}
template <class Exec>
Gemm<Exec>::~Gemm() = default;
template <class Exec>
Gemm<Exec>::Gemm(Gemm&&) noexcept = default;

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::operator()(Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a, Matrix<const TA, Exec> b,
                            Acc<TA> beta, Matrix<TC, Exec> c) {
  batch<TA, TC>(1, {}, op_a, op_b, alpha, a, b, beta, c);
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::batch(std::size_t count, const Apart& apart, Op op_a, Op op_b, Acc<TA> alpha, Matrix<const TA, Exec> a,
                       Matrix<const TA, Exec> b, Acc<TA> beta, Matrix<TC, Exec> c) {
  const Product product = describe<TA, TC, Exec>(op_a, op_b, alpha, a, b, beta, c);
  if (product.m == 0 || product.n == 0 || count == 0) return;
  if (product.k == 0 || alpha == 0) {
    for (std::size_t i = 0; i < count; ++i) scale<TC, Exec>(c, static_cast<double>(beta), i * apart.c);
    return;
  }
  const auto operands = [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    return Operands{alpha, a.data() + at * apart.a, b.data() + at * apart.b, c.data() + at * apart.c};
  };
  state_->timed(double(count) * operations(product), [&] {
    count == 1 ? state_->run(product, operands(0))
               : state_->run_batch(static_cast<std::int64_t>(count), product, operands);
  });
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::batch(Op op_a, Op op_b, Acc<TA> alpha, const MatrixList<const TA, Exec>& a,
                       const MatrixList<const TA, Exec>& b, Acc<TA> beta, const MatrixList<TC, Exec>& c) {
  require_equal_counts(a, b, c);
  for (std::size_t i = 0; i < c.count; ++i)
    (*this).template operator()<TA, TC>(op_a, op_b, alpha, a[i], b[i], beta, c[i]);
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::run_group(std::size_t count, Op op_a, Op op_b, Acc<TA> alpha, Acc<TA> beta, EachOperands<TA, TC> next,
                           const void* each) {
  State& s = *state_;
  s.group.clear();
  s.work.clear();
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const GroupOperands<TA, TC, Exec> x = next(each, i);
    const Product product = describe<TA, TC, Exec>(op_a, op_b, alpha, x.a, x.b, beta, x.c);
    if (product.m == 0 || product.n == 0) continue;
    if (product.k == 0 || alpha == 0) {
      scale<TC, Exec>(x.c, static_cast<double>(beta));
      continue;
    }
    s.group.emplace_back(product, host::Operands{alpha, x.a.data(), x.b.data(), x.c.data()});
    sum += s.work.emplace_back(operations(product));
  }
  if (!s.group.empty()) s.timed(sum, [&] { s.run_group(); });
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::symmetric(Op op, Acc<TA> alpha, const MatrixList<const TA, Exec>& a, Acc<TA> beta,
                           const MatrixList<TC, Exec>& c) {
  require_equal_counts(a, a, c);
  for (std::size_t i = 0; i < c.count; ++i) symmetric<TA, TC>(op, alpha, a[i], beta, c[i]);
}

template <class Exec>
std::size_t Gemm<Exec>::lanes() const requires is_host<Exec> {
  return state_->lanes.size();
}

template <class Exec>
const Exec& Gemm<Exec>::exec() const requires is_host<Exec> {
  return state_->exec;
}

template <class Exec>
void Gemm<Exec>::run_lanes(std::size_t items, LaneBody call, const void* body) requires is_host<Exec> {
  if constexpr (std::is_same_v<Exec, Serial>) {
    for (std::size_t item = 0; item < items; ++item) call(body, *this, item, 0);
  } else {
    State& s = *state_;
    s.timed(0, [&] {
      s.by_all_threads(static_cast<std::int64_t>(items), [&](int lane, std::int64_t item) {
        const auto at = static_cast<std::size_t>(lane);
        call(body, s.alone[at], static_cast<std::size_t>(item), at);
      });
    });
    for (Gemm<Serial>& products : s.alone) s.count.flops += products.take_count().flops;
  }
}

template <class Exec>
template <class TA, class TC>
void Gemm<Exec>::symmetric(Op op, Acc<TA> alpha, Matrix<const TA, Exec> a, Acc<TA> beta, Matrix<TC, Exec> c) {
  const bool plain = op == Op::none;
  const std::size_t m = a.extent(plain ? 0 : 1);
  SESTINA_REQUIRE(c.extent(0) == m && c.extent(1) == m, "symmetric product of A ({}, {}){} into C ({}, {})",
                  a.extent(0), a.extent(1), plain ? "" : "^T", c.extent(0), c.extent(1));
  const Product product = describe<TA, TC, Exec>(op, plain ? Op::transpose : Op::none, alpha, a, a, beta, c);
  if (m == 0) return;
  if (product.k == 0 || alpha == 0) return scale<TC, Exec>(c, static_cast<double>(beta));
  const Operands operands{alpha, a.data(), a.data(), c.data()};
  state_->timed(operations(product) / 2, [&] { state_->template run_symmetric<TC>(product, operands); });
}

template <class Exec>
void Gemm<Exec>::round_to_tf32(bool) {}
template <class Exec>
void Gemm<Exec>::time_products(bool on) {
  state_->timing = on;
}
template <class Exec>
typename Gemm<Exec>::Count Gemm<Exec>::take_count() {
  return std::exchange(state_->count, Count{});
}

#define SESTINA_GEMM_TYPES(Exec, TA, TC)                                                                            \
  template void Gemm<Exec>::operator()<TA, TC>(Op, Op, Acc<TA>, Matrix<const TA, Exec>, Matrix<const TA, Exec>,     \
                                               Acc<TA>, Matrix<TC, Exec>);                                          \
  template void Gemm<Exec>::batch<TA, TC>(std::size_t, const Apart&, Op, Op, Acc<TA>, Matrix<const TA, Exec>,       \
                                          Matrix<const TA, Exec>, Acc<TA>, Matrix<TC, Exec>);                       \
  template void Gemm<Exec>::batch<TA, TC>(Op, Op, Acc<TA>, const MatrixList<const TA, Exec>&,                       \
                                          const MatrixList<const TA, Exec>&, Acc<TA>, const MatrixList<TC, Exec>&); \
  template void Gemm<Exec>::run_group<TA, TC>(std::size_t, Op, Op, Acc<TA>, Acc<TA>, EachOperands<TA, TC>,          \
                                              const void*);                                                         \
  template void Gemm<Exec>::symmetric<TA, TC>(Op, Acc<TA>, Matrix<const TA, Exec>, Acc<TA>, Matrix<TC, Exec>);      \
  template void Gemm<Exec>::symmetric<TA, TC>(Op, Acc<TA>, const MatrixList<const TA, Exec>&, Acc<TA>,              \
                                              const MatrixList<TC, Exec>&);
#define SESTINA_GEMM(Exec)                 \
  template class Gemm<Exec>;               \
  SESTINA_GEMM_TYPES(Exec, float, float)   \
  SESTINA_GEMM_TYPES(Exec, double, double) \
  SESTINA_GEMM_TYPES(Exec, bf16, bf16)     \
  SESTINA_GEMM_TYPES(Exec, bf16, float)
SESTINA_GEMM(Host)
SESTINA_GEMM(Serial)

}  // namespace sestina

#include "kernels/blas/host/packed_product.hpp"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/host/pack_panels.hpp"

namespace sestina::host {
namespace {

// Elements of k that are multiplied at a time: so much of a panel of B (256 x 24 floats with AVX2, 256 x 32 bf16 with
// AMX) stays in the first-level cache.
constexpr std::int64_t depth = 256;
// Elements of B that are packed before they are multiplied, so that they stay in the second-level cache, and the
// largest number of k among them.
constexpr std::int64_t packed_elements = std::int64_t{1} << 19, most_depth = 2048;
// Rows of A that one item of work takes: at most 128 kB packed, which stay in the second-level cache.
constexpr std::int64_t item_rows = 128;
// Size of a block of C, whose packed panels all threads share. More threads take more rows, so that each has some.
constexpr std::int64_t block_cols = 768, block_rows = 768, threads_of_block = 8;

constexpr std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t size) { return pieces(n, size) * size; }

// Sets n elements of y to bf16(scale * x), rounded as bf16 rounds, sixteen at a time: compilers do not find this by
// themselves.
void write_scaled(float scale, const float* x, std::int64_t n, bf16* y) {
  typedef float Wide __attribute__((vector_size(64)));
  typedef std::uint32_t Bits __attribute__((vector_size(64)));
  typedef std::uint16_t Narrow __attribute__((vector_size(32)));
  std::int64_t j = 0;
  for (; j + 16 <= n; j += 16) {
    Wide wide;
    std::memcpy(&wide, x + j, sizeof wide);
    wide *= scale;
    const auto bits = (Bits)wide;
    const Bits rounded = (bits + (0x7fffu + (bits >> 16 & 1))) >> 16, quiet = bits >> 16 | 0x40u;
    const auto is_nan = (Bits)(wide != wide);
    const auto narrow = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Narrow);
    std::memcpy(static_cast<void*>(y + j), &narrow, sizeof narrow);
  }
  for (; j < n; ++j) y[j] = bf16(scale * x[j]);
}
void write_scaled(float scale, const float* x, std::int64_t n, float* y) {
  for (std::int64_t j = 0; j < n; ++j) y[j] = scale * x[j];
}

// Writes C = alpha * sums + beta * C in a tile of so many rows and columns; sums has rows of `width`.
template <class TC>
void write_tile(const Product& p, float alpha, const float* sums, int width, std::int64_t rows, std::int64_t cols,
                TC* c) {
  const auto beta = static_cast<float>(p.beta);
  for (std::int64_t i = 0; i < rows; ++i, sums += width, c += p.ldc) {
    if (beta == 0)
      write_scaled(alpha, sums, cols, c);
    else
      for (std::int64_t j = 0; j < cols; ++j) c[j] = TC(alpha * sums[j] + beta * static_cast<float>(c[j]));
  }
}

// A block of C, in tiles, and the packed panels that it is made of.
struct Block {
  std::int64_t row, col, rows, cols;
  std::byte *a, *b;
  float* sums;
};

// One pass over `k` elements from `first` on, filled to a multiple of the kernel's step: it adds to the sums of all
// tiles of an item; the last pass writes C.
struct Pass {
  std::int64_t first, k, filled;
  bool begins, ends;
  bool packs_b;  // else the panels of B are those of the rows before
};

struct ProductWork {
  const TileKernel& kernel;
  const Product& product;
  const Operands& x;

  std::int64_t bytes_a(std::int64_t k) const { return k * kernel.rows * size_of(kernel.a); }  // of a panel
  std::int64_t bytes_b(std::int64_t k) const { return k * kernel.cols * size_of(kernel.b); }

  // Returns the columns of a tile: those of the last one are no more vectors than it needs.
  int width(const Block& block, std::int64_t tile_col) const {
    const std::int64_t left = block.cols - tile_col * kernel.cols, vector = kernel.cols / 3;
    if (kernel.narrow[0] == nullptr || left > 2 * vector) return kernel.cols;
    return static_cast<int>(left > vector ? 2 * vector : vector);
  }
  TileKernel::Run run_of(int width) const {
    return width == kernel.cols ? kernel.run : kernel.narrow[3 * width / kernel.cols - 1];
  }

  // Returns whether the kernel reads a panel of A where it lies: whole rows of whole steps. Rows that are multiples of
  // 4 kB apart share a place in the first-level cache, and are packed.
  bool in_place(const Block& block, const Pass& pass, std::int64_t panel) const {
    return kernel.a == Packing::rows && product.op_a == Op::none && pass.k == pass.filled &&
           (panel + 1) * kernel.rows <= block.rows && product.lda % 2048 != 0;
  }
  // Returns a panel from element `first` of the pass on.
  LeftPanel left(const Block& block, const Pass& pass, std::int64_t panel, std::int64_t first) const {
    if (!in_place(block, pass, panel)) return {block.a + panel * bytes_a(pass.filled) + bytes_a(first)};
    const std::int64_t row = 2 * product.lda;  // bytes
    return {static_cast<const std::byte*>(x.a) + (block.row + panel * kernel.rows) * row + 2 * (pass.first + first),
            row, 64, 16 * row};
  }
};

// Sums of an item in one column of tiles: they stay here from its first elements of k to its last, unless there are
// several passes.
struct ItemSums {
  alignas(64) float tile[item_rows * max_tile_cols];
};

void write(const ProductWork& work, const Block& block, std::int64_t panel, std::int64_t tile_col, const float* sums) {
  const auto& [kernel, p, x] = work;
  const int width = work.width(block, tile_col);
  const std::int64_t row = block.row + panel * kernel.rows, col = block.col + tile_col * kernel.cols,
                     rows = std::min<std::int64_t>(kernel.rows, block.row + block.rows - row),
                     cols = std::min<std::int64_t>(kernel.cols, block.col + block.cols - col), at = row * p.ldc + col;
  const auto alpha = static_cast<float>(x.alpha);
  if (p.types == GemmTypes::bf16)
    write_tile(p, alpha, sums, width, rows, cols, static_cast<bf16*>(x.c) + at);
  else
    write_tile(p, alpha, sums, width, rows, cols, static_cast<float*>(x.c) + at);
}

void run_item(const ProductWork& work, const Block& block, const Pass& pass, std::int64_t item, std::int64_t tile_col) {
  ItemSums own;
  const TileKernel& kernel = work.kernel;
  const std::int64_t size = std::int64_t{kernel.rows} * kernel.cols, across = pieces(block.cols, kernel.cols),
                     tiles = item_rows / kernel.rows, begin = item * tiles,
                     end = std::min(begin + tiles, pieces(block.rows, kernel.rows));
  const bool alone = pass.begins && pass.ends;
  const auto sums_of = [&](std::int64_t i) {
    return alone ? own.tile + (i - begin) * size : block.sums + (i * across + tile_col) * size;
  };
  const int width = work.width(block, tile_col);
  const TileKernel::Run run = work.run_of(width);
  const std::byte* b = block.b + tile_col * work.bytes_b(pass.filled);
  for (std::int64_t first = 0; first < pass.filled; first += depth)
    for (std::int64_t i = begin; i < end; ++i)
      run(std::min(depth, pass.filled - first), work.left(block, pass, i, first), b + first * width * size_of(kernel.b),
          !pass.begins || first > 0, sums_of(i));
  if (!pass.ends) return;
  for (std::int64_t i = begin; i < end; ++i) write(work, block, i, tile_col, sums_of(i));
}

// Called by every thread of a team: packs what the pass needs, then multiplies it. The ends of its loops are the
// barriers.
void run_pass(const ProductWork& work, const Block& block, const Pass& pass) {
  const TileKernel& kernel = work.kernel;  // clang captures no structured binding for a team
  const Product& p = work.product;
  const bool is_float = p.types == GemmTypes::f32;
  const Lines a{static_cast<const std::byte*>(work.x.a), is_float, p.lda, p.op_a == Op::none, p.m};
  const Lines b{static_cast<const std::byte*>(work.x.b), is_float, p.ldb, p.op_b == Op::transpose, p.n};
  const std::int64_t panels_a = pieces(block.rows, kernel.rows), panels_b = pieces(block.cols, kernel.cols),
                     items = pieces(block.rows, item_rows);
#pragma omp for schedule(static) nowait
  for (std::int64_t i = 0; i < panels_a; ++i)
    if (!work.in_place(block, pass, i))
      pack_panel(a, kernel.a, kernel.step, block.row + i * kernel.rows, pass.first, pass.k, kernel.rows,
                 block.a + i * work.bytes_a(pass.filled));
#pragma omp for schedule(static)
  for (std::int64_t j = 0; j < (pass.packs_b ? panels_b : 0); ++j)
    pack_panel(b, kernel.b, kernel.step, block.col + j * kernel.cols, pass.first, pass.k, work.width(block, j),
               block.b + j * work.bytes_b(pass.filled));
#pragma omp for collapse(2) schedule(static)
  for (std::int64_t item = 0; item < items; ++item)
    for (std::int64_t col = 0; col < panels_b; ++col) run_item(work, block, pass, item, col);
}

}  // namespace

void PackedPanels::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* PackedPanels::at_least(std::int64_t bytes) {
  if (bytes > bytes_) {
    constexpr std::int64_t line = 64;
    memory_.reset();
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(line, round_up(bytes, line))));
    if (!memory_) throw std::bad_alloc();
    bytes_ = bytes;
  }
  return memory_.get();
}

void PackedProducts::run(const Product& p, const Operands& x) {
  SESTINA_REQUIRE(p.types != GemmTypes::f64, "packed products have no fp64");
  const TileKernel& kernel = p.types == GemmTypes::f32 || bf16_.run == nullptr ? wide_ : bf16_;
  const ProductWork work{kernel, p, x};
  const int threads = omp_get_max_threads();
  const std::int64_t most_rows = round_up(block_rows * pieces(threads, threads_of_block), kernel.rows),
                     rows = round_up(std::min(p.m, most_rows), kernel.rows),
                     most_cols = block_cols / kernel.cols * kernel.cols,
                     cols = round_up(std::min(p.n, most_cols), kernel.cols),
                     pass_depth = std::clamp(packed_elements / cols / depth * depth, depth, most_depth),
                     k = round_up(std::min(p.k, pass_depth), kernel.step);
  Block whole{0,
              0,
              0,
              0,
              a_.at_least(rows / kernel.rows * work.bytes_a(k)),
              b_.at_least(cols / kernel.cols * work.bytes_b(k)),
              nullptr};
  if (p.k > pass_depth)
    whole.sums = reinterpret_cast<float*>(sums_.at_least(rows * cols * std::int64_t{sizeof(float)}));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    if (kernel.begin != nullptr) kernel.begin();
    for (std::int64_t col = 0; col < p.n; col += most_cols)
      for (std::int64_t row = 0; row < p.m; row += most_rows)
        for (std::int64_t first = 0; first < p.k; first += pass_depth) {
          Block block = whole;
          block.row = row;
          block.col = col;
          block.rows = std::min(most_rows, p.m - row);
          block.cols = std::min(most_cols, p.n - col);
          const std::int64_t here = std::min(pass_depth, p.k - first);
          run_pass(work, block,
                   {first, here, round_up(here, kernel.step), first == 0, first + here == p.k, row == 0 || here < p.k});
        }
    if (kernel.end != nullptr) kernel.end();
  }
}

}  // namespace sestina::host

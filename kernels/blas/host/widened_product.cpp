#include "kernels/blas/host/widened_product.hpp"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/blas/exec.hpp"

namespace sestina::host {
namespace {

// Elements of k in a packed panel: a panel of B (256 x 24 floats with AVX2) stays in 32 kB of first-level cache.
constexpr std::int64_t depth = 256;
// Rows of A that one item of work takes: 128 kB packed, which stay in the second-level cache.
constexpr std::int64_t item_rows = 16 * tile_rows;
// Size of a block of C, whose packed panels all threads share. More threads take more rows, so that each has some.
constexpr std::int64_t block_cols = 768, block_rows = 768, threads_of_block = 8;

constexpr std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t size) { return pieces(n, size) * size; }

// Vectors of eight elements, as they lie in memory.
typedef std::uint16_t Narrow8 __attribute__((vector_size(16)));
typedef std::uint32_t Bits8 __attribute__((vector_size(32)));
typedef float Wide8 __attribute__((vector_size(32)));

inline void load(const bf16* x, Wide8& wide) {
  Narrow8 narrow;
  std::memcpy(&narrow, x, sizeof narrow);
  wide = (Wide8)(__builtin_convertvector(narrow, Bits8) << 16);
}
inline void store(const Wide8& wide, float* y) { std::memcpy(y, &wide, sizeof wide); }

// Transposes an 8 x 8 block of 8 lines: pairs of lines, then pairs of pairs, then halves.
inline void transpose(Wide8 (&x)[8]) {
  Wide8 y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  Wide8 z[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      z[i + j] = __builtin_shufflevector(y[i + j], y[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      z[i + j + 2] = __builtin_shufflevector(y[i + j], y[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = __builtin_shufflevector(z[i], z[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(z[i], z[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// An operand as packing sees it: lines of k elements, which are rows of op_a(A) or columns of op_b(B).
struct Lines {
  const bf16* data;
  std::int64_t leading;
  bool along_k;  // the next element in memory belongs to the same line; else to the next line
  std::int64_t count;

  const bf16* at(std::int64_t line, std::int64_t p) const {
    return data + (along_k ? line * leading + p : p * leading + line);
  }
};

// Packs eight lines from `line` on, `k` elements from `first` on, into eight columns of a panel of `width` columns.
// Lines that the operand does not have become zero.
void pack_eight(const Lines& x, std::int64_t line, std::int64_t first, std::int64_t k, int width, float* panel) {
  const int lines = static_cast<int>(std::clamp<std::int64_t>(x.count - line, 0, 8));
  std::int64_t p = 0;
  if (lines == 8 && x.along_k)
    for (; p + 8 <= k; p += 8) {
      Wide8 block[8];
      for (int i = 0; i < 8; ++i) load(x.at(line + i, first + p), block[i]);
      transpose(block);
      for (int i = 0; i < 8; ++i) store(block[i], panel + (p + i) * width);
    }
  if (lines == 8 && !x.along_k)
    for (; p < k; ++p) {
      Wide8 row;
      load(x.at(line, first + p), row);
      store(row, panel + p * width);
    }
  for (; p < k; ++p)
    for (int i = 0; i < 8; ++i) panel[p * width + i] = i < lines ? static_cast<float>(*x.at(line + i, first + p)) : 0;
}

void pack(const Lines& x, std::int64_t line, std::int64_t first, std::int64_t k, int width, float* panel) {
  for (int col = 0; col < width; col += 8) pack_eight(x, line + col, first, k, width, panel + col);
}

// Writes C = alpha * sums + beta * C in a tile of so many rows and columns; sums has rows of `width`.
template <class TC>
void write_tile(const Product& p, float alpha, const float* sums, int width, std::int64_t rows, std::int64_t cols,
                TC* c) {
  const auto beta = static_cast<float>(p.beta);
  for (std::int64_t i = 0; i < rows; ++i, sums += width, c += p.ldc) {
    if (beta == 0)
      for (std::int64_t j = 0; j < cols; ++j) c[j] = TC(alpha * sums[j]);
    else
      for (std::int64_t j = 0; j < cols; ++j) c[j] = TC(alpha * sums[j] + beta * static_cast<float>(c[j]));
  }
}

// A block of C, in tiles, and the packed panels that it is made of.
struct Block {
  std::int64_t row, col, rows, cols;
  float *a, *b, *sums;
};

// One pass over `k` elements from `first` on: it adds to the sums of all tiles of an item; the last pass writes C.
struct Pass {
  std::int64_t first, k;
  bool begins, ends;
};

void run_item(const TileKernel& kernel, const Product& p, const Operands& x, const Block& block, const Pass& pass,
              std::int64_t item, std::int64_t tile_col) {
  alignas(64) float tile[tile_rows * max_tile_cols];
  const std::int64_t tiles_down = pieces(block.rows, tile_rows), tiles_across = pieces(block.cols, kernel.cols);
  const std::int64_t from = item * (item_rows / tile_rows), end = std::min(from + item_rows / tile_rows, tiles_down);
  const float* b = block.b + tile_col * kernel.cols * pass.k;
  for (std::int64_t i = from; i < end; ++i) {
    float* sums =
        pass.begins && pass.ends ? tile : block.sums + (i * tiles_across + tile_col) * tile_rows * kernel.cols;
    kernel.run(pass.k, block.a + i * tile_rows * pass.k, b, !pass.begins, sums);
    if (!pass.ends) continue;
    const std::int64_t row = block.row + i * tile_rows, col = block.col + tile_col * kernel.cols,
                       rows = std::min<std::int64_t>(tile_rows, block.row + block.rows - row),
                       cols = std::min<std::int64_t>(kernel.cols, block.col + block.cols - col), at = row * p.ldc + col;
    const auto alpha = static_cast<float>(x.alpha);
    if (p.types == GemmTypes::bf16)
      write_tile(p, alpha, sums, kernel.cols, rows, cols, static_cast<bf16*>(x.c) + at);
    else
      write_tile(p, alpha, sums, kernel.cols, rows, cols, static_cast<float*>(x.c) + at);
  }
}

// Called by every thread of a team: packs what the pass needs, then multiplies it. The ends of its loops are the
// barriers.
void run_pass(const TileKernel& kernel, const Product& p, const Operands& x, const Block& block, const Pass& pass) {
  const Lines a{static_cast<const bf16*>(x.a), p.lda, p.op_a == Op::none, p.m};
  const Lines b{static_cast<const bf16*>(x.b), p.ldb, p.op_b == Op::transpose, p.n};
  const std::int64_t panels_a = pieces(block.rows, tile_rows), panels_b = pieces(block.cols, kernel.cols),
                     items = pieces(block.rows, item_rows);
#pragma omp for schedule(static) nowait
  for (std::int64_t i = 0; i < panels_a; ++i)
    pack(a, block.row + i * tile_rows, pass.first, pass.k, tile_rows, block.a + i * tile_rows * pass.k);
#pragma omp for schedule(static)
  for (std::int64_t j = 0; j < panels_b; ++j)
    pack(b, block.col + j * kernel.cols, pass.first, pass.k, kernel.cols, block.b + j * kernel.cols * pass.k);
#pragma omp for collapse(2) schedule(static)
  for (std::int64_t item = 0; item < items; ++item)
    for (std::int64_t col = 0; col < panels_b; ++col) run_item(kernel, p, x, block, pass, item, col);
}

}  // namespace

void PackedPanels::Free::operator()(float* memory) const { std::free(memory); }

float* PackedPanels::at_least(std::int64_t count) {
  if (count > count_) {
    constexpr std::int64_t line = 64;
    memory_.reset();
    memory_.reset(static_cast<float*>(std::aligned_alloc(line, round_up(count * std::int64_t{sizeof(float)}, line))));
    if (!memory_) throw std::bad_alloc();
    count_ = count;
  }
  return memory_.get();
}

void WidenedProducts::run(const Product& p, const Operands& x) {
  const int threads = omp_get_max_threads();
  const std::int64_t most_rows = round_up(block_rows * pieces(threads, threads_of_block), tile_rows),
                     rows = round_up(std::min(p.m, most_rows), tile_rows),
                     most_cols = block_cols / kernel_.cols * kernel_.cols,
                     cols = round_up(std::min(p.n, most_cols), kernel_.cols), k = std::min(p.k, depth);
  Block whole{0, 0, 0, 0, a_.at_least(rows * k), b_.at_least(cols * k), nullptr};
  if (p.k > depth) whole.sums = sums_.at_least(rows * cols);
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (std::int64_t col = 0; col < p.n; col += most_cols)
    for (std::int64_t row = 0; row < p.m; row += most_rows)
      for (std::int64_t first = 0; first < p.k; first += depth) {
        Block block = whole;
        block.row = row;
        block.col = col;
        block.rows = std::min(most_rows, p.m - row);
        block.cols = std::min(most_cols, p.n - col);
        const std::int64_t depth_here = std::min(depth, p.k - first);
        run_pass(kernel_, p, x, block, {first, depth_here, first == 0, first + depth_here == p.k});
      }
}

}  // namespace sestina::host

#include "kernels/blas/host/pack_panels.hpp"

#include <algorithm>
#include <cstring>

namespace sestina::host {
namespace {

// Vectors of eight elements of 32 bits: floats, or pairs of bf16.
typedef std::uint16_t Narrow8 __attribute__((vector_size(16)));
typedef std::uint32_t Bits8 __attribute__((vector_size(32)));

inline void load(const std::byte* x, Bits8& y) { std::memcpy(&y, x, sizeof y); }
// Returns eight elements of 16 bits, each in one of 32. (Of __builtin_convertvector g++ 12 makes five instructions on
// two halves, of this one.)
inline Bits8 extended(const std::byte* x) {
  Narrow8 n;
  std::memcpy(&n, x, sizeof n);
  return Bits8{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
}
inline void widen(const std::byte* x, Bits8& y) { y = extended(x) << 16; }
// Sets y to pairs of an element of one line of memory and the element below it.
inline void interleave(const std::byte* upper, const std::byte* lower, Bits8& y) {
  y = extended(upper) | extended(lower) << 16;
}
inline void store(const Bits8& y, std::byte* x) { std::memcpy(x, &y, sizeof y); }

// Transposes an 8 x 8 block of 8 lines: pairs of lines, then pairs of pairs, then halves.
inline void transpose(Bits8 (&x)[8]) {
  Bits8 y[8];
  for (int i = 0; i < 8; i += 2) {
    y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  Bits8 z[8];
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

// A block of 8 lines and 8 (wide) or 16 (bf16) elements of k, as eight vectors.
enum class Kind { floats, widened, bf16 };

template <Kind kind>
struct PackedBlock {
  static constexpr int depth = kind == Kind::bf16 ? 16 : 8;           // elements of k
  static constexpr std::int64_t size = kind == Kind::floats ? 4 : 2;  // bytes of an element of the operand

  // Reads a block whose lines, or whose elements of one place in k, are `leading` bytes apart. by_line: a vector holds
  // elements of one line; else those of all lines at one place, or pair of places, in k.
  static void read(const std::byte* x, std::int64_t leading, bool along_k, bool by_line, Bits8 (&block)[8]) {
    for (int i = 0; i < 8; ++i)
      if constexpr (kind == Kind::floats)
        load(x + i * leading, block[i]);
      else if constexpr (kind == Kind::widened)
        widen(x + i * leading, block[i]);
      else if (along_k)
        load(x + i * leading, block[i]);
      else
        interleave(x + 2 * i * leading, x + (2 * i + 1) * leading, block[i]);
    if (along_k != by_line) transpose(block);
  }
};

// Returns where vector i of a block of 8 lines from `line` on, from element p of k on, lies in its panel.
template <Packing packing>
std::byte* place(std::byte* panel, int width, int line, std::int64_t p, int i) {
  if constexpr (packing == Packing::wide) return panel + ((p + i) * width + line) * 4;
  if constexpr (packing == Packing::pairs) return panel + ((p / 2 + i) * width + line) * 4;
  constexpr std::int64_t depth = 32;  // of Packing::rows
  return panel + (p / depth * width + line + i) * depth * 2 + p % depth * 2;
}

template <Kind kind, Packing packing>
void pack_lines(const Lines& x, int step, std::int64_t line, std::int64_t first, std::int64_t k, int width, int at,
                std::byte* panel) {
  using B = PackedBlock<kind>;
  constexpr bool by_line = packing == Packing::rows;
  const std::int64_t along = x.along_k ? 1 : x.leading, across = x.along_k ? x.leading : 1,
                     filled = (k + step - 1) / step * step;
  const auto lines = std::clamp<std::int64_t>(x.count - line, 0, packed_lines);
  const auto source = [&](std::int64_t i, std::int64_t p) {
    return x.data + ((line + i) * across + (first + p) * along) * B::size;
  };
  Bits8 block[8];
  std::int64_t p = 0;
  if (lines == packed_lines)
    for (; p + B::depth <= k; p += B::depth) {
      B::read(source(0, p), x.leading * B::size, x.along_k, by_line, block);
      for (int i = 0; i < 8; ++i) store(block[i], place<packing>(panel, width, at, p, i));
    }
  for (; p < filled; p += B::depth) {  // an edge, out of a copy that is filled with zeros
    std::byte edge[packed_lines][B::depth * B::size] = {};
    for (std::int64_t i = 0; i < lines; ++i)
      for (std::int64_t q = p; q < std::min(k, p + B::depth); ++q)
        std::memcpy(edge[i] + (q - p) * B::size, source(i, q), B::size);
    B::read(edge[0], B::depth * B::size, true, by_line, block);
    const int vectors = by_line ? 8 : static_cast<int>(std::min<std::int64_t>(8, (filled - p) * 8 / B::depth));
    for (int i = 0; i < vectors; ++i) store(block[i], place<packing>(panel, width, at, p, i));
  }
}

}  // namespace

void pack_panel(const Lines& x, Packing packing, int step, std::int64_t line, std::int64_t first, std::int64_t k,
                int width, std::byte* panel) {
  for (int at = 0; at < width; at += packed_lines)
    if (packing == Packing::pairs)
      pack_lines<Kind::bf16, Packing::pairs>(x, step, line + at, first, k, width, at, panel);
    else if (packing == Packing::rows)
      pack_lines<Kind::bf16, Packing::rows>(x, step, line + at, first, k, width, at, panel);
    else if (x.is_float)
      pack_lines<Kind::floats, Packing::wide>(x, step, line + at, first, k, width, at, panel);
    else
      pack_lines<Kind::widened, Packing::wide>(x, step, line + at, first, k, width, at, panel);
}

}  // namespace sestina::host

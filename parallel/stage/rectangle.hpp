// Rectangles of matrices: what a rank computes with, and what it updates, are parts of a whole one. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/layout/tensor_spec.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {

struct Rectangle {  // [row, row_end) x [col, col_end) of a matrix
  std::int64_t row = 0, row_end = 0, col = 0, col_end = 0;
  bool is_empty() const { return row >= row_end || col >= col_end; }
};

inline Rectangle rectangle_of(const TensorSpec& whole) { return {0, whole.rows, 0, whole.cols}; }
inline Rectangle rectangle_of(const TensorSpec& whole, const TensorShard& shard) {
  if (shard.cut == TensorShard::Cut::cols) return {0, whole.rows, shard.begin, shard.end};
  return {shard.begin, shard.end, 0, whole.cols};
}
inline Rectangle common_part(const Rectangle& a, const Rectangle& b) {
  return {std::max(a.row, b.row), std::min(a.row_end, b.row_end), std::max(a.col, b.col),
          std::min(a.col_end, b.col_end)};
}

// Returns the block of a part inside memory that holds `whole` without padding, elements of `width` bytes.
inline Block part_block(void* data, const Rectangle& whole, const Rectangle& part, std::size_t width) {
  const auto ld = static_cast<std::size_t>(whole.col_end - whole.col),
             cols = static_cast<std::size_t>(part.col_end - part.col),
             rows = static_cast<std::size_t>(part.row_end - part.row),
             first =
                 static_cast<std::size_t>(part.row - whole.row) * ld + static_cast<std::size_t>(part.col - whole.col);
  char* const begin = static_cast<char*>(data) + first * width;
  return cols == ld ? block_of(begin, rows * cols * width) : Block{begin, rows, cols * width, ld * width};
}

}  // namespace sestina

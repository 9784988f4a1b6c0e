// A rectangle of a tensor: rows of its first dimension, columns of its second (a vector has one column), whole in all
// others. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace sestina {

struct Slab {
  std::int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
};

inline std::int64_t columns_of(const std::vector<std::int64_t>& shape) { return shape.size() < 2 ? 1 : shape[1]; }

// What a StateField or a ManifestPiece holds of a tensor of that shape: their columns 0, 0 mean all.
template <class Held>
Slab slab_of(const Held& held, const std::vector<std::int64_t>& shape) {
  const bool all = held.col_end == 0;
  return {held.row_begin, held.row_end, all ? 0 : held.col_begin, all ? columns_of(shape) : held.col_end};
}

// No rows or no columns where they do not meet: a size is then 0 or below.
inline Slab intersection(const Slab& a, const Slab& b) {
  return {std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end), std::max(a.col_begin, b.col_begin),
          std::min(a.col_end, b.col_end)};
}

// The same rectangle, seen from the corner of another one.
inline Slab relative(const Slab& slab, const Slab& corner) {
  return {slab.row_begin - corner.row_begin, slab.row_end - corner.row_begin, slab.col_begin - corner.col_begin,
          slab.col_end - corner.col_begin};
}

// Shape of a slab that is stored by itself.
inline std::vector<std::int64_t> shape_of(const Slab& slab, std::vector<std::int64_t> shape) {
  shape.at(0) = slab.rows();
  if (shape.size() > 1) shape[1] = slab.cols();
  return shape;
}

inline bool is_empty(const std::vector<std::int64_t>& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

}  // namespace sestina

// State as a list of named fields, which checkpointing, tiering and memory planning read. They know no optimizer by
// name. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace sestina {

class Pager;

// A tensor or a slab of it, in memory that somebody else owns: rows [row_begin, row_end) of columns [col_begin,
// col_end). `path` is its place in a checkpoint: "/model/<HF name>" or "/optimizer/<HF name>/<field>". To write its
// memory takes a guard (pager.hpp).
struct StateField {
  std::string path;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;          // global shape
  std::int64_t row_begin = 0, row_end = 0;  // rows held here (dim 0)
  std::int64_t col_begin = 0, col_end = 0;  // columns held here (dim 1) of a matrix that is cut there; 0, 0: all
  const void* data = nullptr;               // row-major, without padding; device memory when on_device
  bool on_device = false;
  bool saved = true;          // false: a copy of what another rank writes to checkpoints
  std::uint64_t version = 0;  // raised whenever the field is published again
  bool optional = false;      // in a checkpoint without it all of it is zero
  bool of_basis = false;      // see FieldSize
  bool of_places = false;     // i32: rows of the slab, counted from its first one; in files counted in the whole tensor
  Pager* pager = nullptr;     // data may be elsewhere: it is pinned during its use (pager.hpp)
  // Elements from a row to the next in memory, where the field is a block in longer rows: that of a replica's weights
  // alone (MatrixSet::replica). 0: rows follow one another.
  std::int64_t row_stride = 0;
  std::int64_t row_elements() const;  // elements of one row of the slab
  bool has_all_columns() const { return col_end == 0; }
  std::size_t bytes() const {
    return static_cast<std::size_t>((row_end - row_begin) * row_elements()) * size_of(dtype);
  }
};

// For a field of places, these turn places in the slab into places in the whole tensor, and back. False: one of them is
// not in the slab.
void places_to_whole(const StateField&, void* host);
bool places_from_whole(const StateField&, void* host);

// The size of a piece of a field, which is in memory at a time on its way between its place and a checkpoint.
inline constexpr std::size_t field_piece_bytes = std::size_t{8} << 20;
// The memory of a save that streams: one piece is filled while the other is written.
inline constexpr std::size_t field_stream_bytes = 2 * field_piece_bytes;

// Returns so many bytes of a field's memory as plain bytes to be copied. Whoever copies them has pinned the field.
inline StateField bytes_of(const StateField& field, std::size_t begin, std::size_t count) {
  StateField bytes;
  bytes.path = field.path;
  bytes.dtype = DType::u8;
  bytes.shape = {static_cast<std::int64_t>(count)};
  bytes.row_end = bytes.shape[0];
  bytes.data = static_cast<const std::byte*>(field.data) + begin;
  bytes.on_device = field.on_device;
  return bytes;
}

// Calls use(piece) for all rows of the field in turn, as fields of their own: as many as a piece holds, at least one.
// A field of places, whose values belong to all of it, is one piece.
template <class Use>
void for_each_rows(const StateField& field, const Use& use) {
  const std::int64_t rows = field.row_end - field.row_begin;
  const auto row_bytes =
      static_cast<std::int64_t>(field.row_elements()) * static_cast<std::int64_t>(size_of(field.dtype));
  const std::int64_t most = static_cast<std::int64_t>(field_piece_bytes) / std::max<std::int64_t>(1, row_bytes);
  const std::int64_t step = field.of_places ? rows : std::max<std::int64_t>(1, most);
  std::int64_t first = 0;
  do {  // a field without rows is one piece too
    StateField piece = field;
    piece.row_begin = field.row_begin + first;
    piece.row_end = field.row_begin + std::min(rows, first + step);
    if (field.data != nullptr) piece.data = static_cast<const std::byte*>(field.data) + first * row_bytes;
    use(piece);
    first += step;
  } while (first < rows);
}

}  // namespace sestina

// Pieces of a field: what of it is in memory at a time on its way between its place and a checkpoint. No Kokkos.
#pragma once
#include <algorithm>

#include "core/memory/state_field.hpp"

namespace sestina {

inline constexpr std::size_t field_piece_bytes = std::size_t{8} << 20;
// Of a save that streams: one piece is filled while the other is written.
inline constexpr std::size_t field_stream_bytes = 2 * field_piece_bytes;

// So many bytes of where the field lies, as plain bytes: to be copied. Whoever copies them has pinned the field.
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
  do {  // none at all are one piece too
    StateField piece = field;
    piece.row_begin = field.row_begin + first;
    piece.row_end = field.row_begin + std::min(rows, first + step);
    if (field.data != nullptr) piece.data = static_cast<const std::byte*>(field.data) + first * row_bytes;
    use(piece);
    first += step;
  } while (first < rows);
}

}  // namespace sestina

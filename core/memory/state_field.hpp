// State as a list of named fields: what checkpointing, tiering and memory planning read. They know no optimizer by
// name.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.hpp"

namespace sestina {

class Pager;

// A tensor or a slab of it, in memory that somebody else owns: rows [row_begin, row_end) of columns [col_begin,
// col_end). `path` is its place in a checkpoint: "/model/<HF name>" or "/optimizer/<HF name>/<field>". Who writes its
// memory has a guard for that (write_guard.hpp).
struct StateField {
  std::string path;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;          // global shape
  std::int64_t row_begin = 0, row_end = 0;  // rows held here (dim 0)
  std::int64_t col_begin = 0, col_end = 0;  // columns held here (dim 1) of a matrix that is cut there; 0, 0: all
  const void* data = nullptr;               // row-major, without padding; device memory when on_device
  bool on_device = false;
  bool saved = true;                  // false: a copy of what another rank writes to checkpoints
  std::uint64_t version = 0;          // raised whenever the field is published again
  bool optional = false;              // of a checkpoint without it all of it is zero
  bool of_basis = false;              // see FieldSize
  bool of_places = false;             // i32: rows of the slab, from its first one; in files of the whole tensor
  Pager* pager = nullptr;             // data may be elsewhere: it is pinned while it is used (pager.hpp)
  std::int64_t row_elements() const;  // elements of one row of the slab
  bool has_all_columns() const { return col_end == 0; }
  std::size_t bytes() const {
    return static_cast<std::size_t>((row_end - row_begin) * row_elements()) * size_of(dtype);
  }
};

// Where the field is one of places: those in the slab become those in the whole tensor, and back. False: one of them is
// not in the slab.
void places_to_whole(const StateField&, void* host);
bool places_from_whole(const StateField&, void* host);

}  // namespace sestina

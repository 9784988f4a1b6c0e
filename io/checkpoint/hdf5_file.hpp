// HDF5 files of checkpoints: rectangles of tensors, the part of HDF5 that is used, and the two kinds of file that are
// made of both. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/state_field.hpp"
#include "io/checkpoint/manifest.hpp"

namespace sestina {

// A rectangle of a tensor: rows of its first dimension, columns of its second (a vector has one column), whole in all
// others.
struct Slab {
  std::int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  std::int64_t rows() const { return row_end - row_begin; }
  std::int64_t cols() const { return col_end - col_begin; }
};

inline std::int64_t columns_of(const std::vector<std::int64_t>& shape) { return shape.size() < 2 ? 1 : shape[1]; }

// Returns the slab that a StateField or a ManifestPiece holds of a tensor of that shape: columns 0, 0 mean all.
template <class Held>
Slab slab_of(const Held& held, const std::vector<std::int64_t>& shape) {
  const bool all = held.col_end == 0;
  return {held.row_begin, held.row_end, all ? 0 : held.col_begin, all ? columns_of(shape) : held.col_end};
}

// Returns the common rectangle; where the slabs do not meet, rows() or cols() is 0 or below.
inline Slab intersection(const Slab& a, const Slab& b) {
  return {std::max(a.row_begin, b.row_begin), std::min(a.row_end, b.row_end), std::max(a.col_begin, b.col_begin),
          std::min(a.col_end, b.col_end)};
}

// Returns the same rectangle, seen from the corner of another one.
inline Slab relative(const Slab& slab, const Slab& corner) {
  return {slab.row_begin - corner.row_begin, slab.row_end - corner.row_begin, slab.col_begin - corner.col_begin,
          slab.col_end - corner.col_begin};
}

// Returns the shape of a slab that is stored by itself.
inline std::vector<std::int64_t> shape_of(const Slab& slab, std::vector<std::int64_t> shape) {
  shape.at(0) = slab.rows();
  if (shape.size() > 1) shape[1] = slab.cols();
  return shape;
}

inline bool is_empty(const std::vector<std::int64_t>& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

// The part of HDF5 that checkpoints use, with every call checked: one Error in place of HDF5's error stack. Bulk data
// is not written through HDF5: add_tensor reserves a contiguous stretch of the file and says where, and the caller
// writes it there after close(). So a full disk is met by our own writes, not inside the library. Calls are serialised:
// the library is not thread-safe. Reading assumes that a digest has already vouched for the file.

// A slab of a virtual dataset: it is the dataset of the same path in `file` (a sibling file).
struct VirtualPart {
  std::string file;
  Slab slab;
};

class Hdf5File {
 public:
  static Hdf5File create(const std::string& path);  // truncates; Error(io_error)
  static Hdf5File open(const std::string& path);    // to read; Error(bad_data)
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) noexcept;
  void close();  // closes and checks; nothing else may be called afterwards

  // Adds a contiguous little-endian dataset; missing groups are made. Returns its first byte in the file (0 when it has
  // none).
  std::uint64_t add_tensor(const std::string& path, DType, const std::vector<std::int64_t>& shape);
  void add_virtual(const std::string& path, DType, const std::vector<std::int64_t>& shape,
                   const std::vector<VirtualPart>&);
  void add_text(const std::string& path, const std::string& text);
  void add_integer(const std::string& path, std::uint64_t value);
  void add_number(const std::string& path, double value);

  struct Shape {
    std::optional<DType> dtype;  // empty: no type that checkpoints use
    std::vector<std::int64_t> shape;
  };
  Shape shape(const std::string& path) const;  // Error(bad_data) if there is no such dataset
  // Reads a slab of a dataset of this type and shape into host memory, without gaps; Error(bad_data) if the dataset
  // differs.
  void read(const std::string& path, DType, const std::vector<std::int64_t>& shape, const Slab&, void* out) const;
  // Reads the slab `from` of a dataset into the place `to` (of the same size) of host memory of another shape.
  void read_into(const std::string& path, DType, const std::vector<std::int64_t>& shape, const Slab& from, void* out,
                 const std::vector<std::int64_t>& out_shape, const Slab& to) const;

 private:
  struct State;
  explicit Hdf5File(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

// The two kinds of HDF5 file in a checkpoint: a rank's shard and global.h5, which shows every tensor whole.
std::string shard_name(std::int64_t rank);  // "shard_00003.h5"

// Gives the bytes of a field from the first to the last: calls use(data, bytes) for one piece after the other.
using UseBytes = std::function<void(const void* data, std::size_t bytes)>;
using FieldData = std::function<void(const StateField&, const UseBytes&)>;

// Writes the fields and the run state to `path`; returns one tensor per field with its one piece, whose file number is
// `file`. A field is a slab of its tensor, and each tensor has one field; empty slabs are left out (a tensor that has
// no elements at all is written). Fields that do not lie in memory come from `data`, which is asked for them one after
// the other, before all others are written. Digests are taken from the memory that is written.
std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t file, const std::vector<StateField>&,
                                        const RunState&, const FieldData& data = {});
// Writes virtual datasets over the shards named in manifest.files.
void write_global(const std::string& path, const Manifest&);

}  // namespace sestina

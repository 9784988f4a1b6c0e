// The part of HDF5 that checkpoints use, with every call checked: one Error in place of HDF5's error stack. Bulk data
// is not written through HDF5: add_tensor reserves a contiguous stretch of the file and says where, and the caller
// writes it there after close(). So a full disk is met by our own writes, not inside the library. Calls are serialised:
// the library is not thread-safe. Reading assumes that a digest has already vouched for the file. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/state_field.hpp"
#include "io/checkpoint/slab.hpp"

namespace sestina {

// This slab of a virtual dataset is the dataset of the same path in `file` (a sibling file).
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
  void close();  // checked; nothing else may be called afterwards

  // A contiguous little-endian dataset; missing groups are made. Returns its first byte in the file (0 when it has
  // none).
  std::uint64_t add_tensor(const std::string& path, DType, const std::vector<std::int64_t>& shape);
  void add_virtual(const std::string& path, DType, const std::vector<std::int64_t>& shape,
                   const std::vector<VirtualPart>&);
  void add_text(const std::string& path, const std::string& text);
  void add_integer(const std::string& path, std::uint64_t value);
  void add_number(const std::string& path, double value);

  struct Shape {
    std::optional<DType> dtype;  // empty: none of ours
    std::vector<std::int64_t> shape;
  };
  Shape shape(const std::string& path) const;  // Error(bad_data) if there is no such dataset
  // A slab of a dataset of this type and shape into host memory, without gaps; Error(bad_data) if the dataset differs.
  void read(const std::string& path, DType, const std::vector<std::int64_t>& shape, const Slab&, void* out) const;
  // The slab `from` of a dataset to the place `to` (of the same size) of host memory of another shape.
  void read_into(const std::string& path, DType, const std::vector<std::int64_t>& shape, const Slab& from, void* out,
                 const std::vector<std::int64_t>& out_shape, const Slab& to) const;

 private:
  struct State;
  explicit Hdf5File(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

}  // namespace sestina

#include "io/checkpoint/hdf5_file.hpp"

#include <hdf5.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "io/checkpoint/checkpoint_files.hpp"
#include "io/store/digest.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

constexpr hsize_t kMetadataBlock = hsize_t{1} << 18;  // metadata in few large pieces instead of between the tensors
constexpr hsize_t kAlignFrom = hsize_t{1} << 14, kAlignTo = 4096;

std::mutex& library_lock() {
  static std::mutex lock;
  return lock;
}

// Makes the library quiet, without clean-up at exit: after a failed flush that clean-up would try again, endlessly.
void start_library() {
  static const bool once = [] { return H5dont_atexit() >= 0 && H5open() >= 0; }();
  SESTINA_REQUIRE(once, "libhdf5 cannot be initialised");
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string innermost_error() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* entry, void* out) -> herr_t {
        if (n == 0 && entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &text);
  return text.empty() ? "unknown HDF5 error" : text;
}

// Owns an identifier of any HDF5 kind.
class Id {
 public:
  Id(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Id() { close_now(); }
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  Id& operator=(Id&&) = delete;
  operator hid_t() const { return id_; }
  herr_t close_now() { return id_ >= 0 ? close_(std::exchange(id_, -1)) : 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// bfloat16 as HDF5 describes floats: the upper half of an IEEE single. h5py widens it to float32.
hid_t make_bf16() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool good = type >= 0 && H5Tset_fields(type, 15, 7, 8, 0, 7) >= 0 && H5Tset_precision(type, 16) >= 0 &&
                    H5Tset_size(type, 2) >= 0 && H5Tset_ebias(type, 127) >= 0;
  return good ? type : -1;
}

Id make_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Id(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case DType::f64:
      return Id(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
    case DType::bf16:
      return Id(make_bf16(), H5Tclose);
    case DType::i32:
      return Id(H5Tcopy(H5T_STD_I32LE), H5Tclose);
    case DType::i64:
      return Id(H5Tcopy(H5T_STD_I64LE), H5Tclose);
    case DType::u8:
      return Id(H5Tcopy(H5T_STD_U8LE), H5Tclose);
    case DType::u16:
      return Id(H5Tcopy(H5T_STD_U16LE), H5Tclose);
    case DType::u32:
      return Id(H5Tcopy(H5T_STD_U32LE), H5Tclose);
  }
  return Id(-1, H5Tclose);
}

Id make_space(const std::vector<std::int64_t>& shape) {
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  return Id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
}

herr_t select(hid_t space, const std::vector<std::int64_t>& shape, const Slab& slab) {
  std::vector<hsize_t> start(shape.size(), 0), count(shape.begin(), shape.end());
  start[0] = static_cast<hsize_t>(slab.row_begin);
  count[0] = static_cast<hsize_t>(slab.rows());
  if (shape.size() > 1) {
    start[1] = static_cast<hsize_t>(slab.col_begin);
    count[1] = static_cast<hsize_t>(slab.cols());
  }
  return H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
}

}  // namespace

struct Hdf5File::State {
  std::string name;
  ExitCode on_error;
  Id file, links;

  // Returns the call's result if it is good, else throws one Error with HDF5's innermost reason.
  template <class T>
  T checked(T result, const std::string& what) const {
    if (result < 0) fail(on_error, "{}: {}: {}", name, what, innermost_error());
    return result;
  }
  Id dataset(const std::string& path, hid_t type, hid_t space, hid_t create) const {
    return Id(checked(H5Dcreate2(file, path.c_str(), type, space, links, create, H5P_DEFAULT), "dataset " + path),
              H5Dclose);
  }
  void write_scalar(const std::string& path, hid_t type, const void* value) const {
    const Id space(checked(H5Screate(H5S_SCALAR), path), H5Sclose);
    const Id set = dataset(path, type, space, H5P_DEFAULT);
    checked(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value), "writing " + path);
  }
};

Hdf5File::Hdf5File(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;
Hdf5File& Hdf5File::operator=(Hdf5File&&) noexcept = default;
Hdf5File::~Hdf5File() {
  const std::lock_guard guard(library_lock());
  state_.reset();
}

Hdf5File Hdf5File::create(const std::string& path) {
  const std::lock_guard guard(library_lock());
  start_library();
  const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // There is one format version for all readers, and no file locks, which network file systems often lack.
  const bool set = access >= 0 && H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
                   H5Pset_meta_block_size(access, kMetadataBlock) >= 0 &&
                   H5Pset_alignment(access, kAlignFrom, kAlignTo) >= 0 && H5Pset_file_locking(access, false, true) >= 0;
  if (!set) fail(ExitCode::io_error, "{}: HDF5 properties: {}", path, innermost_error());
  Id file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose);
  if (file < 0) fail(ExitCode::io_error, "{}: cannot be created: {}", path, innermost_error());
  Id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  if (H5Pset_create_intermediate_group(links, 1) < 0) fail(ExitCode::io_error, "{}: {}", path, innermost_error());
  return Hdf5File(std::unique_ptr<State>(new State{path, ExitCode::io_error, std::move(file), std::move(links)}));
}

Hdf5File Hdf5File::open(const std::string& path) {
  const std::lock_guard guard(library_lock());
  start_library();
  const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  if (H5Pset_file_locking(access, false, true) < 0) fail(ExitCode::bad_data, "{}: {}", path, innermost_error());
  Id file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
  if (file < 0) fail(ExitCode::bad_data, "{}: is not an HDF5 file: {}", path, innermost_error());
  return Hdf5File(std::unique_ptr<State>(new State{path, ExitCode::bad_data, std::move(file), Id(-1, H5Pclose)}));
}

void Hdf5File::close() {
  const std::lock_guard guard(library_lock());
  state_->checked(state_->file.close_now(), "closing");
}

std::uint64_t Hdf5File::add_tensor(const std::string& path, DType dtype, const std::vector<std::int64_t>& shape) {
  const std::lock_guard guard(library_lock());
  const Id type = make_type(dtype), space = make_space(shape), create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  state_->checked(H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY), path);
  state_->checked(H5Pset_fill_time(create, H5D_FILL_TIME_NEVER), path);
  const Id set = state_->dataset(path, type, space, create);
  if (is_empty(shape)) return 0;
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF) fail(state_->on_error, "{}: dataset {} has no storage in the file", state_->name, path);
  return offset;
}

void Hdf5File::add_virtual(const std::string& path, DType dtype, const std::vector<std::int64_t>& shape,
                           const std::vector<VirtualPart>& parts) {
  if (is_empty(shape)) {
    add_tensor(path, dtype, shape);
    return;
  }
  const std::lock_guard guard(library_lock());
  const Id type = make_type(dtype), space = make_space(shape), create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  for (const VirtualPart& part : parts) {
    const Id source = make_space(shape_of(part.slab, shape));
    state_->checked(select(space, shape, part.slab), path);
    state_->checked(H5Pset_virtual(create, space, part.file.c_str(), path.c_str(), source), path);
  }
  state_->checked(H5Sselect_all(space), path);
  state_->dataset(path, type, space, create);
}

void Hdf5File::add_text(const std::string& path, const std::string& text) {
  const std::lock_guard guard(library_lock());
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  state_->checked(H5Tset_size(type, std::max<std::size_t>(1, text.size())), path);
  state_->checked(H5Tset_strpad(type, H5T_STR_NULLPAD), path);
  state_->checked(H5Tset_cset(type, H5T_CSET_UTF8), path);
  state_->write_scalar(path, type, text.c_str());
}

void Hdf5File::add_integer(const std::string& path, std::uint64_t value) {
  const std::lock_guard guard(library_lock());
  state_->write_scalar(path, H5T_NATIVE_UINT64, &value);
}

void Hdf5File::add_number(const std::string& path, double value) {
  const std::lock_guard guard(library_lock());
  state_->write_scalar(path, H5T_NATIVE_DOUBLE, &value);
}

Hdf5File::Shape Hdf5File::shape(const std::string& path) const {
  const std::lock_guard guard(library_lock());
  const Id set(state_->checked(H5Dopen2(state_->file, path.c_str(), H5P_DEFAULT), "no dataset " + path), H5Dclose);
  const Id space(state_->checked(H5Dget_space(set), path), H5Sclose),
      stored(state_->checked(H5Dget_type(set), path), H5Tclose);
  const int rank = state_->checked(H5Sget_simple_extent_ndims(space), path);
  std::array<hsize_t, H5S_MAX_RANK> dims{};
  state_->checked(H5Sget_simple_extent_dims(space, dims.data(), nullptr), path);
  Shape result;
  result.shape.assign(dims.begin(), dims.begin() + rank);
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8, DType::u16, DType::u32})
    if (H5Tequal(stored, make_type(dtype)) > 0) result.dtype = dtype;
  return result;
}

void Hdf5File::read(const std::string& path, DType dtype, const std::vector<std::int64_t>& shape, const Slab& slab,
                    void* out) const {
  read_into(path, dtype, shape, slab, out, shape_of(slab, shape), relative(slab, slab));
}

void Hdf5File::read_into(const std::string& path, DType dtype, const std::vector<std::int64_t>& shape, const Slab& from,
                         void* out, const std::vector<std::int64_t>& out_shape, const Slab& to) const {
  const Shape stored = this->shape(path);
  if (stored.dtype != dtype || stored.shape != shape)
    fail(ExitCode::bad_data, "{}: dataset {} has another type or shape than the manifest says", state_->name, path);
  if (is_empty(shape_of(from, shape))) return;
  const std::lock_guard guard(library_lock());
  const Id set(state_->checked(H5Dopen2(state_->file, path.c_str(), H5P_DEFAULT), path), H5Dclose),
      type = make_type(dtype);
  const Id space = make_space(shape), memory = make_space(out_shape);
  state_->checked(select(space, shape, from), path);
  state_->checked(select(memory, out_shape, to), path);
  state_->checked(H5Dread(set, type, memory, space, H5P_DEFAULT, out), "reading " + path);
}

namespace {

// A resume reads the manifest; these datasets are for people with h5py.
void add_run(Hdf5File& file, const RunState& run) {
  file.add_integer("/run/step", static_cast<std::uint64_t>(run.step));
  file.add_integer("/run/sample", run.sample);
  file.add_integer("/run/tokens", run.tokens);
  file.add_integer("/run/seed", run.seed);
  file.add_number("/run/loss", run.loss);
  file.add_text("/run/deck", run.deck);
}

// Returns where the field will lie; its digest comes with its data.
ManifestTensor place(Hdf5File& file, const StateField& field, std::size_t number) {
  const Slab slab = slab_of(field, field.shape);
  ManifestPiece piece;
  piece.file = number;
  piece.row_begin = slab.row_begin;
  piece.row_end = slab.row_end;
  if (slab.cols() != columns_of(field.shape)) {
    piece.col_begin = slab.col_begin;
    piece.col_end = slab.col_end;
  }
  piece.offset = file.add_tensor(field.path, field.dtype, shape_of(slab, field.shape));
  piece.bytes = field.bytes();
  return {field.path, field.dtype, field.shape, field.version, {std::move(piece)}};
}

// Writes the field's bytes to their place, and their digest into the piece.
void write_field(const std::string& path, const StateField& field, const FieldData& data, ManifestPiece& piece) {
  Digest64 digest;
  std::uint64_t at = piece.offset;
  const UseBytes write = [&](const void* bytes, std::size_t count) {
    digest.add(bytes, count);
    write_parts(path, {{bytes, at, count}});
    at += count;
  };
  if (field.data != nullptr || field.bytes() == 0)
    write(field.data, field.bytes());
  else
    data(field, write);
  SESTINA_REQUIRE(at == piece.offset + piece.bytes, "{}: {} bytes, got {}", field.path, piece.bytes, at - piece.offset);
  piece.xxh3_64 = digest.hex();
}

// True where there is nothing to write: the tensor has elements, but this rank holds none of them.
bool is_elsewhere(const StateField& field) { return field.bytes() == 0 && !is_empty(field.shape); }

}  // namespace

std::string shard_name(std::int64_t rank) { return fmt::format("shard_{:05}.h5", rank); }

std::vector<ManifestTensor> write_shard(const std::string& path, std::size_t number,
                                        const std::vector<StateField>& fields, const RunState& run,
                                        const FieldData& data) {
  std::uint64_t total = 0;
  for (const StateField& field : fields) total += field.bytes();
  reserve_room(path, total);

  Hdf5File file = Hdf5File::create(path);
  add_run(file, run);
  std::vector<ManifestTensor> tensors;
  std::vector<std::size_t> placed;  // the field of each
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (is_elsewhere(fields[i])) continue;
    tensors.push_back(place(file, fields[i], number));
    placed.push_back(i);
  }
  file.close();
  for (const bool in_memory : {false, true})
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const StateField& field = fields[placed[i]];
      if ((field.data != nullptr || field.bytes() == 0) == in_memory)
        write_field(path, field, data, tensors[i].pieces[0]);
    }
  return tensors;
}

void write_global(const std::string& path, const Manifest& manifest) {
  Hdf5File file = Hdf5File::create(path);
  add_run(file, manifest.run);
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<VirtualPart> parts;
    for (const ManifestPiece& piece : tensor.pieces)
      parts.push_back({manifest.files[piece.file].name, slab_of(piece, tensor.shape)});
    file.add_virtual(tensor.path, tensor.dtype, tensor.shape, parts);
  }
  file.close();
}

}  // namespace sestina

#include "io/checkpoint/checkpoint_verify.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/store/digest.hpp"
#include "io/store/finite.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxManifest = std::uintmax_t{256} << 20;
constexpr std::int64_t kReadBytes = std::int64_t{16} << 20;  // per HDF5 read in check_datasets

// Returns " (tensor /model/x, bytes [a, b) of the file)" for the first piece of the file whose bytes have changed.
std::string damaged_part(const std::string& path, const Manifest& manifest, std::size_t file) {
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces)
      if (piece.file == file && digest_range(path, piece.offset, piece.bytes) != piece.xxh3_64)
        return fmt::format("; damaged: {}, bytes [{}, {}) of the file", tensor.path, piece.offset,
                           piece.offset + piece.bytes);
  return "; the damage lies outside the tensors";
}

// Checks that a slab of the dataset of that shape in `file` has the digest of the piece. It is read in stretches of
// rows.
void check_slab(const Hdf5File& file, const std::string& path, const ManifestTensor& tensor,
                const std::vector<std::int64_t>& shape, const Slab& slab, const ManifestPiece& piece) {
  const std::int64_t row_bytes = slab.rows() == 0 ? 0 : static_cast<std::int64_t>(piece.bytes) / slab.rows();
  const std::int64_t step = std::max<std::int64_t>(1, row_bytes == 0 ? slab.rows() : kReadBytes / row_bytes);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(step, slab.rows()) * row_bytes));
  Digest64 digest;
  for (Slab part = slab; part.row_begin < slab.row_end; part.row_begin = part.row_end) {
    part.row_end = std::min(slab.row_end, part.row_begin + step);
    file.read(tensor.path, tensor.dtype, shape, part, buffer.data());
    digest.add(buffer.data(), static_cast<std::size_t>(part.rows() * row_bytes));
  }
  if (digest.hex() != piece.xxh3_64)
    fail(ExitCode::bad_data, "{}: dataset {} does not hold the bytes that the manifest lists", path, tensor.path);
}

void check_size(const std::string& path, const ManifestFile& file) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) fail(ExitCode::bad_data, "{}: is missing", path);
  if (static_cast<std::uint64_t>(status.st_size) != file.size)
    fail(ExitCode::bad_data, "{}: has {} bytes, the manifest says {}", path, status.st_size, file.size);
}

}  // namespace

Manifest load_manifest(const std::string& checkpoint) {
  std::error_code error;
  const std::string path = checkpoint + "/manifest.json";
  if (!fs::is_directory(checkpoint, error)) {
    if (fs::is_symlink(fs::symlink_status(checkpoint, error)))
      fail(ExitCode::bad_data, "{}: points to {}, which does not exist", checkpoint,
           fs::read_symlink(checkpoint, error).string());
    if (fs::exists(checkpoint, error)) fail(ExitCode::bad_data, "{}: is not a checkpoint folder", checkpoint);
    fail(ExitCode::input_missing, "{}: no such checkpoint", checkpoint);
  }
  if (!fs::is_regular_file(path, error))
    fail(ExitCode::bad_data, "{}: is not complete: it has no manifest.json", checkpoint);
  const std::uintmax_t size = fs::file_size(path, error);
  if (error || size > kMaxManifest)
    fail(ExitCode::bad_data, "{}: has {} bytes, at most {} are read", path, size, kMaxManifest);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::input_missing, "{}: cannot be opened", path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_manifest(text, path);
}

void check_sizes(const std::string& checkpoint, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) check_size(checkpoint + "/" + file.name, file);
  check_companion_sizes(checkpoint, manifest);
  check_extra_files(checkpoint, manifest);
}

void check_extra_files(const std::string& checkpoint, const Manifest& manifest) {
  std::set<std::string> listed;
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".h5") && !listed.contains(name))
      fail(ExitCode::bad_data, "{}/{}: is not listed in the manifest", checkpoint, name);
  }
}

void check_file(const std::string& checkpoint, const Manifest& manifest, std::size_t number, const Poll& poll) {
  const ManifestFile& file = manifest.files[number];
  const std::string path = checkpoint + "/" + file.name;
  check_size(path, file);
  const std::string got = digest_file(path, poll).xxh3_128;
  if (got != file.xxh3_128)
    fail(ExitCode::bad_data, "{}: digest does not match: the manifest says {}, the file has {}{}", path, file.xxh3_128,
         got, damaged_part(path, manifest, number));
}

void check_digests(const std::string& checkpoint, const Manifest& manifest, const Poll& poll) {
  check_sizes(checkpoint, manifest);
  for (std::size_t i = 0; i < manifest.files.size(); ++i) check_file(checkpoint, manifest, i, poll);
  check_companions(checkpoint, manifest, poll);
}

void check_finite(const std::string& checkpoint, const Manifest& manifest, const Poll& poll) {
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces) {
      const Slab slab = slab_of(piece, tensor.shape);
      const StateField field{tensor.path,  tensor.dtype,   tensor.shape, slab.row_begin,
                             slab.row_end, slab.col_begin, slab.col_end};
      std::size_t before = 0;  // values
      read_chunks(checkpoint + "/" + manifest.files[piece.file].name, piece.offset, piece.bytes,
                  [&](const std::byte* data, std::size_t bytes) {
                    if (const auto index = first_nonfinite(tensor.dtype, data, bytes))
                      fail(ExitCode::bad_data, "{}: {}", checkpoint,
                           nonfinite_text(field, data + *index * size_of(tensor.dtype), before + *index));
                    before += bytes / size_of(tensor.dtype);
                    if (poll) poll();
                  });
    }
}

void check_shard(const std::string& checkpoint, const Manifest& manifest, std::size_t number) {
  const std::string path = checkpoint + "/" + manifest.files[number].name;
  const Hdf5File shard = Hdf5File::open(path);
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces) {
      if (piece.file != number) continue;
      const Slab slab = slab_of(piece, tensor.shape);
      check_slab(shard, path, tensor, shape_of(slab, tensor.shape), relative(slab, slab), piece);
    }
}

void check_datasets(const std::string& checkpoint, const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.files.size(); ++i)
    if (manifest.files[i].name != "global.h5") check_shard(checkpoint, manifest, i);
  // The shards are closed here: HDF5 1.10 reads zeros through a virtual dataset whose source is open with other
  // properties.
  const std::string path = checkpoint + "/global.h5";
  const Hdf5File global = Hdf5File::open(path);
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces)
      check_slab(global, path, tensor, tensor.shape, slab_of(piece, tensor.shape), piece);
}

}  // namespace sestina

#include "io/checkpoint_verify.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/digest.hpp"
#include "io/hdf5_file.hpp"
#include "kernels/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxManifest = std::uintmax_t{256} << 20;
constexpr std::int64_t kReadBytes = std::int64_t{16} << 20;  // per HDF5 read in check_datasets

// " (tensor /model/x, bytes [a, b) of the file)" for the first piece of the file whose bytes have changed.
std::string damaged_part(const std::string& path, const Manifest& manifest, std::size_t file) {
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces)
      if (piece.file == file && digest_range(path, piece.offset, piece.bytes) != piece.xxh3_64)
        return fmt::format("; damaged: {}, bytes [{}, {}) of the file", tensor.path, piece.offset,
                           piece.offset + piece.bytes);
  return "; the damage lies outside the tensors";
}

// The rows of a piece, which begin at row `first` of the dataset of that shape in `file`, have the piece's digest.
void check_rows(const Hdf5File& file, const std::string& path, const ManifestTensor& tensor,
                const std::vector<std::int64_t>& shape, std::int64_t first, const ManifestPiece& piece) {
  const std::int64_t rows = piece.row_end - piece.row_begin;
  const std::int64_t row_bytes = rows == 0 ? 0 : static_cast<std::int64_t>(piece.bytes) / rows;
  const std::int64_t step = std::max<std::int64_t>(1, row_bytes == 0 ? rows : kReadBytes / row_bytes);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(step, rows) * row_bytes));
  Digest64 digest;
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t end = std::min(rows, row + step);
    file.read_rows(tensor.path, tensor.dtype, shape, first + row, first + end, buffer.data());
    digest.add(buffer.data(), static_cast<std::size_t>((end - row) * row_bytes));
  }
  if (digest.hex() != piece.xxh3_64)
    fail(ExitCode::bad_data, "{}: dataset {} does not hold the bytes that the manifest vouches for", path, tensor.path);
}

}  // namespace

Manifest load_manifest(const std::string& checkpoint) {
  std::error_code error;
  const std::string path = checkpoint + "/manifest.json";
  if (!fs::is_directory(checkpoint, error)) {
    if (fs::is_symlink(fs::symlink_status(checkpoint, error)))
      fail(ExitCode::bad_data, "{}: points to {}, which is not there", checkpoint,
           fs::read_symlink(checkpoint, error).string());
    if (fs::exists(checkpoint, error)) fail(ExitCode::bad_data, "{}: is no checkpoint folder", checkpoint);
    fail(ExitCode::input_missing, "{}: there is no such checkpoint", checkpoint);
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
  for (const ManifestFile& file : manifest.files) {
    struct stat status {};
    const std::string path = checkpoint + "/" + file.name;
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      fail(ExitCode::bad_data, "{}: is missing", path);
    if (static_cast<std::uint64_t>(status.st_size) != file.size)
      fail(ExitCode::bad_data, "{}: has {} bytes, the manifest says {}", path, status.st_size, file.size);
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint, error)) {
    const std::string name = entry.path().filename().string();
    const bool listed = std::any_of(manifest.files.begin(), manifest.files.end(),
                                    [&](const ManifestFile& file) { return file.name == name; });
    if (name.ends_with(".h5") && !listed)
      fail(ExitCode::bad_data, "{}/{}: is not listed in the manifest", checkpoint, name);
  }
}

void check_digests(const std::string& checkpoint, const Manifest& manifest) {
  check_sizes(checkpoint, manifest);
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string path = checkpoint + "/" + file.name, got = digest_file(path).xxh3_128;
    if (got != file.xxh3_128)
      fail(ExitCode::bad_data, "{}: digest does not match: the manifest says {}, the file has {}{}", path,
           file.xxh3_128, got, damaged_part(path, manifest, i));
  }
}

void check_datasets(const std::string& checkpoint, const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    if (manifest.files[i].name == "global.h5") continue;
    const std::string path = checkpoint + "/" + manifest.files[i].name;
    const Hdf5File shard = Hdf5File::open(path);
    for (const ManifestTensor& tensor : manifest.tensors)
      for (const ManifestPiece& piece : tensor.pieces) {
        if (piece.file != i) continue;
        std::vector<std::int64_t> slab = tensor.shape;
        slab[0] = piece.row_end - piece.row_begin;
        check_rows(shard, path, tensor, slab, 0, piece);
      }
  }
  // With the shards closed: HDF5 1.10 reads zeros through a virtual dataset whose source is open with other properties.
  const std::string path = checkpoint + "/global.h5";
  const Hdf5File global = Hdf5File::open(path);
  for (const ManifestTensor& tensor : manifest.tensors)
    for (const ManifestPiece& piece : tensor.pieces)
      check_rows(global, path, tensor, tensor.shape, piece.row_begin, piece);
}

}  // namespace sestina

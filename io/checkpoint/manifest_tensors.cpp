#include "io/checkpoint/manifest.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "io/checkpoint/hdf5_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kMaxDimensions = 8;

std::optional<DType> dtype_named(const std::string& wanted) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8, DType::u16, DType::u32})
    if (wanted == name(dtype)) return dtype;
  return std::nullopt;
}

bool is_file_name(const std::string& name) {
  if (name == "global.h5") return true;
  return name.size() == 14 && name.starts_with("shard_") && name.ends_with(".h5") &&
         name.substr(6, 5).find_first_not_of("0123456789") == std::string::npos;
}

// True for "/model/<name>...": absolute, of known root, without an empty, "." or ".." part.
bool is_tensor_path(const std::string& path) {
  if (!path.starts_with("/model/") && !path.starts_with("/optimizer/") && !path.starts_with("/run/")) return false;
  if (path.size() > 1000 || path.find('\0') != std::string::npos) return false;
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

ManifestFile read_file(const json& object, const std::string& where) {
  Members members(object, where);
  ManifestFile file{members.text("name"), static_cast<std::uint64_t>(members.count("size")),
                    members.digest("xxh3_128", 32)};
  members.finish();
  if (!is_file_name(file.name))
    fail(ExitCode::bad_data, "{}: \"name\" is \"{}\"; expected shard_NNNNN.h5 or global.h5", where, file.name);
  return file;
}

// Returns the bytes of an element of the first two dimensions; -1 when the shape is out of bounds.
std::int64_t inner_bytes(const std::vector<std::int64_t>& shape, DType dtype) {
  std::int64_t inner = static_cast<std::int64_t>(size_of(dtype));
  for (std::size_t i = 2; i < shape.size(); ++i)
    if (__builtin_mul_overflow(inner, shape[i], &inner)) return -1;
  std::int64_t whole = inner;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, shape.size()); ++i)
    if (__builtin_mul_overflow(whole, shape[i], &whole)) return -1;
  return whole > kMaxCount || inner > kMaxCount ? -1 : inner;
}

std::string shown(const Slab& slab) {
  return fmt::format("rows [{}, {}), columns [{}, {})", slab.row_begin, slab.row_end, slab.col_begin, slab.col_end);
}

using FileNumbers = std::map<std::string, std::size_t>;

ManifestPiece read_piece(const json& object, const FileNumbers& numbers, const std::vector<ManifestFile>& files,
                         const std::string& where) {
  Members members(object, where);
  ManifestPiece piece;
  const std::string name = members.text("file");
  piece.row_begin = members.count("row_begin");
  piece.row_end = members.count("row_end");
  if (members.has("col_begin") || members.has("col_end")) {
    piece.col_begin = members.count("col_begin");
    piece.col_end = members.count("col_end");
    if (piece.col_begin >= piece.col_end)
      fail(ExitCode::bad_data, "{}: columns [{}, {}) are empty", where, piece.col_begin, piece.col_end);
  }
  piece.offset = static_cast<std::uint64_t>(members.count("offset"));
  piece.bytes = static_cast<std::uint64_t>(members.count("bytes"));
  piece.xxh3_64 = members.digest("xxh3_64", 16);
  members.finish();
  const auto found = numbers.find(name);
  if (found == numbers.end() || name == "global.h5")
    fail(ExitCode::bad_data, "{}: file \"{}\" is not among the shards", where, name);
  piece.file = found->second;
  if (const ManifestFile& file = files[piece.file]; piece.offset + piece.bytes > file.size)
    fail(ExitCode::bad_data, "{}: bytes [{}, {}) lie beyond the end of {} ({})", where, piece.offset,
         piece.offset + piece.bytes, name, file.size);
  return piece;
}

// Checks that a piece lies inside its tensor, is not empty unless the tensor is, and has the bytes of its elements.
void check_piece(const ManifestPiece& piece, const ManifestTensor& tensor, std::int64_t inner,
                 const std::string& where) {
  const Slab slab = slab_of(piece, tensor.shape);
  const bool empty = is_empty(tensor.shape);
  if (slab.row_begin > slab.row_end || slab.row_end > tensor.shape[0] || slab.col_end > columns_of(tensor.shape) ||
      (piece.col_end != 0 && tensor.shape.size() < 2))
    fail(ExitCode::bad_data, "{}: {} lie outside of ({})", where, shown(slab), fmt::join(tensor.shape, ", "));
  if (!empty && slab.rows() == 0) fail(ExitCode::bad_data, "{}: {} are empty", where, shown(slab));
  const auto expected = empty ? 0 : static_cast<std::uint64_t>(slab.rows() * slab.cols() * inner);
  if (piece.bytes != expected)
    fail(ExitCode::bad_data, "{}: {}: \"bytes\" is {}; expected {}", where, shown(slab), piece.bytes, expected);
}

ManifestTensor read_tensor(const json& object, const FileNumbers& numbers, const std::vector<ManifestFile>& files,
                           const std::string& where) {
  Members members(object, where);
  ManifestTensor tensor;
  tensor.path = members.text("path");
  if (!is_tensor_path(tensor.path))
    fail(ExitCode::bad_data, "{}: \"path\" \"{}\" is not below /model, /optimizer or /run", where, tensor.path);
  const std::string at = where + " " + tensor.path;
  const std::string type = members.text("dtype");
  const std::optional<DType> dtype = dtype_named(type);
  if (!dtype)
    fail(ExitCode::bad_data, "{}: \"dtype\" is \"{}\"; expected f32, f64, bf16, i32, i64, u8, u16 or u32", at, type);
  tensor.dtype = *dtype;
  tensor.version = members.word("version");
  const json& shape = members.list("shape");
  if (shape.empty() || shape.size() > kMaxDimensions)
    fail(ExitCode::bad_data, "{}: {} dimensions; expected 1 to {}", at, shape.size(), kMaxDimensions);
  for (const json& n : shape) {
    if (!n.is_number_unsigned() || n.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxCount))
      fail(ExitCode::bad_data, "{}: \"shape\" holds something other than whole numbers from 0 to {}", at, kMaxCount);
    tensor.shape.push_back(n.get<std::int64_t>());
  }
  const std::int64_t inner = inner_bytes(tensor.shape, tensor.dtype);
  if (inner < 0) fail(ExitCode::bad_data, "{}: shape is too large", at);
  for (const json& entry : members.list("pieces")) {
    tensor.pieces.push_back(read_piece(entry, numbers, files, at));
    check_piece(tensor.pieces.back(), tensor, inner, at);
  }
  members.finish();
  return tensor;
}

std::pair<std::int64_t, std::int64_t> corner(const Slab& slab) { return {slab.row_begin, slab.col_begin}; }

// Sweeps over the rows and keeps the columns that are taken. The slabs are not empty and in the order of their corners.
void check_disjoint(const std::vector<Slab>& slabs, const std::string& at) {
  std::vector<Slab> ends = slabs;
  std::sort(ends.begin(), ends.end(), [](const Slab& a, const Slab& b) { return a.row_end < b.row_end; });
  std::map<std::int64_t, std::int64_t> taken;  // columns, begin to end, of the slabs that have the row
  std::size_t ended = 0;
  for (const Slab& slab : slabs) {
    for (; ends[ended].row_end <= slab.row_begin; ++ended) taken.erase(ends[ended].col_begin);
    const auto right = taken.lower_bound(slab.col_begin);
    if ((right != taken.end() && right->first < slab.col_end) ||
        (right != taken.begin() && std::prev(right)->second > slab.col_begin))
      fail(ExitCode::bad_data, "{}: {} overlap another piece", at, shown(slab));
    taken.emplace(slab.col_begin, slab.col_end);
  }
}

ordered_json piece_json(const ManifestPiece& piece, const std::vector<ManifestFile>& files) {
  ordered_json object = {{"file", files[piece.file].name}, {"row_begin", piece.row_begin}, {"row_end", piece.row_end}};
  if (piece.col_end != 0) {
    object["col_begin"] = piece.col_begin;
    object["col_end"] = piece.col_end;
  }
  object["offset"] = piece.offset;
  object["bytes"] = piece.bytes;
  object["xxh3_64"] = piece.xxh3_64;
  return object;
}

}  // namespace

ordered_json files_json(const std::vector<ManifestFile>& files) {
  ordered_json list = ordered_json::array();
  for (const ManifestFile& file : files)
    list.push_back({{"name", file.name}, {"size", file.size}, {"xxh3_128", file.xxh3_128}});
  return list;
}

ordered_json tensors_json(const std::vector<ManifestTensor>& tensors, const std::vector<ManifestFile>& files) {
  ordered_json list = ordered_json::array();
  for (const ManifestTensor& tensor : tensors) {
    ordered_json pieces = ordered_json::array();
    for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(piece_json(piece, files));
    list.push_back({{"path", tensor.path},
                    {"dtype", name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"version", tensor.version},
                    {"pieces", std::move(pieces)}});
  }
  return list;
}

std::vector<ManifestFile> read_files(const json& list, const std::string& where) {
  std::vector<ManifestFile> files;
  std::set<std::string> names;
  for (const json& entry : list) {
    files.push_back(read_file(entry, fmt::format("{}: files[{}]", where, files.size())));
    if (!names.insert(files.back().name).second)
      fail(ExitCode::bad_data, "{}: file {} is listed twice", where, files.back().name);
  }
  return files;
}

std::vector<ManifestTensor> read_tensors(const json& list, const std::vector<ManifestFile>& files,
                                         const std::string& where) {
  FileNumbers numbers;
  for (std::size_t i = 0; i < files.size(); ++i) numbers[files[i].name] = i;
  std::vector<ManifestTensor> tensors;
  std::set<std::string> paths;
  for (const json& entry : list) {
    tensors.push_back(read_tensor(entry, numbers, files, fmt::format("{}: tensors[{}]", where, tensors.size())));
    if (!paths.insert(tensors.back().path).second)
      fail(ExitCode::bad_data, "{}: tensor {} is listed twice", where, tensors.back().path);
  }
  return tensors;
}

void check_tiling(const ManifestTensor& tensor, const std::string& where) {
  const std::string at = where + ": " + tensor.path;
  std::vector<Slab> slabs;
  std::set<std::size_t> files;
  for (const ManifestPiece& piece : tensor.pieces) {
    slabs.push_back(slab_of(piece, tensor.shape));
    if (!files.insert(piece.file).second) fail(ExitCode::bad_data, "{}: two pieces lie in one file", at);
  }
  if (is_empty(tensor.shape)) {
    if (slabs.size() != 1 || slabs[0].rows() != tensor.shape[0] || slabs[0].cols() != columns_of(tensor.shape))
      fail(ExitCode::bad_data, "{}: has no elements; expected one piece with all rows and columns", at);
    return;
  }
  for (std::size_t i = 1; i < slabs.size(); ++i)
    if (corner(slabs[i]) < corner(slabs[i - 1]))
      fail(ExitCode::bad_data, "{}: {} come after {}", at, shown(slabs[i]), shown(slabs[i - 1]));
  check_disjoint(slabs, at);
  std::int64_t held = 0;
  for (const Slab& slab : slabs) held += slab.rows() * slab.cols();
  const std::int64_t all = tensor.shape[0] * columns_of(tensor.shape);
  if (held != all) fail(ExitCode::bad_data, "{}: pieces cover {} of {} elements (rows x columns)", at, held, all);
}

}  // namespace sestina

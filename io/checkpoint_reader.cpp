#include <algorithm>
#include <map>

#include "io/checkpoint.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/hdf5_file.hpp"
#include "kernels/error.hpp"

namespace sestina {
namespace {

std::string shown(DType dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} ({})", name(dtype), fmt::join(shape, ", "));
}

}  // namespace

struct CheckpointReader::State {
  std::string path;
  Manifest manifest;
  std::vector<Entry> entries;
  std::map<std::string, const ManifestTensor*> by_path;
  std::map<std::size_t, Hdf5File> open;  // shards opened so far

  const Hdf5File& shard(std::size_t file) {
    const auto found = open.find(file);
    if (found != open.end()) return found->second;
    return open.emplace(file, Hdf5File::open(path + "/" + manifest.files[file].name)).first->second;
  }
};

CheckpointReader::CheckpointReader(const std::string& checkpoint, bool full) : state_(std::make_unique<State>()) {
  state_->path = checkpoint;
  state_->manifest = load_manifest(checkpoint);
  check_digests(checkpoint, state_->manifest);
  if (full) check_datasets(checkpoint, state_->manifest);
  for (const ManifestTensor& tensor : state_->manifest.tensors) {
    state_->entries.push_back({tensor.path, tensor.dtype, tensor.shape, tensor.version});
    state_->by_path[tensor.path] = &tensor;
  }
}

CheckpointReader::~CheckpointReader() = default;
const RunState& CheckpointReader::run() const { return state_->manifest.run; }
const std::vector<CheckpointReader::Entry>& CheckpointReader::entries() const { return state_->entries; }
bool CheckpointReader::has(const std::string& path) const { return state_->by_path.contains(path); }

void CheckpointReader::read(const StateField& field, void* host) const {
  const auto found = state_->by_path.find(field.path);
  if (found == state_->by_path.end()) fail(ExitCode::bad_data, "{}: has no tensor {}", state_->path, field.path);
  const ManifestTensor& tensor = *found->second;
  if (tensor.dtype != field.dtype || tensor.shape != field.shape)
    fail(ExitCode::bad_data, "{}: tensor {} is {}, this run needs {}", state_->path, field.path,
         shown(tensor.dtype, tensor.shape), shown(field.dtype, field.shape));
  SESTINA_REQUIRE(0 <= field.row_begin && field.row_begin <= field.row_end && field.row_end <= field.shape[0], "{}",
                  field.path);
  const std::int64_t row_bytes = field.row_elements() * static_cast<std::int64_t>(size_of(field.dtype));
  for (const ManifestPiece& piece : tensor.pieces) {
    const std::int64_t begin = std::max(field.row_begin, piece.row_begin), end = std::min(field.row_end, piece.row_end);
    if (begin >= end) continue;
    std::vector<std::int64_t> slab = tensor.shape;
    slab[0] = piece.row_end - piece.row_begin;
    std::byte* out = static_cast<std::byte*>(host) + (begin - field.row_begin) * row_bytes;
    state_->shard(piece.file)
        .read_rows(tensor.path, tensor.dtype, slab, begin - piece.row_begin, end - piece.row_begin, out);
  }
}

}  // namespace sestina

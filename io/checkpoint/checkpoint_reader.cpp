#include <algorithm>
#include <map>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "kernels/base/error.hpp"

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
  bool verified = true;  // all files were verified before the first is opened
  Poll poll;
  std::map<std::size_t, Hdf5File> open;  // shards opened so far

  const Hdf5File& shard(std::size_t file) {
    const auto found = open.find(file);
    if (found != open.end()) return found->second;
    if (!verified) check_file(path, manifest, file, poll);
    return open.emplace(file, Hdf5File::open(path + "/" + manifest.files[file].name)).first->second;
  }
};

CheckpointReader::CheckpointReader(const std::string& checkpoint, Verify verify, const Poll& poll)
    : state_(std::make_unique<State>()) {
  state_->poll = poll;
  state_->path = checkpoint;
  state_->manifest = load_manifest(checkpoint);
  state_->verified = verify != Verify::opened;
  if (state_->verified) check_digests(checkpoint, state_->manifest, poll);
  if (verify == Verify::full) check_datasets(checkpoint, state_->manifest);
  for (const ManifestTensor& tensor : state_->manifest.tensors) {
    state_->entries.push_back({tensor.path, tensor.dtype, tensor.shape, tensor.version});
    state_->by_path[tensor.path] = &tensor;
  }
}

CheckpointReader::~CheckpointReader() = default;
const RunState& CheckpointReader::run() const { return state_->manifest.run; }
const std::vector<CheckpointReader::Entry>& CheckpointReader::entries() const { return state_->entries; }
bool CheckpointReader::has(const std::string& path) const { return state_->by_path.contains(path); }

std::vector<CompanionFile> CheckpointReader::companions() const {
  return read_companions(state_->path, state_->manifest);
}

void CheckpointReader::read(const StateField& field, void* host) const {
  if (state_->poll) state_->poll();
  const auto found = state_->by_path.find(field.path);
  if (found == state_->by_path.end()) fail(ExitCode::bad_data, "{}: holds no tensor {}", state_->path, field.path);
  const ManifestTensor& tensor = *found->second;
  if (tensor.dtype != field.dtype || tensor.shape != field.shape)
    fail(ExitCode::bad_data, "{}: tensor {} is {}, this run needs {}", state_->path, field.path,
         shown(tensor.dtype, tensor.shape), shown(field.dtype, field.shape));
  const Slab wanted = slab_of(field, field.shape);
  SESTINA_REQUIRE(0 <= wanted.row_begin && wanted.row_begin <= wanted.row_end && wanted.row_end <= field.shape[0] &&
                      0 <= wanted.col_begin && wanted.col_begin <= wanted.col_end &&
                      wanted.col_end <= columns_of(field.shape),
                  "{}", field.path);
  for (const ManifestPiece& piece : tensor.pieces) {
    const Slab held = slab_of(piece, tensor.shape), both = intersection(wanted, held);
    if (both.rows() <= 0 || both.cols() <= 0) continue;
    state_->shard(piece.file)
        .read_into(tensor.path, tensor.dtype, shape_of(held, tensor.shape), relative(both, held), host,
                   shape_of(wanted, tensor.shape), relative(both, wanted));
  }
}

}  // namespace sestina

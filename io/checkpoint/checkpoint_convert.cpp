#include "io/checkpoint/checkpoint_convert.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/field_piece.hpp"
#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

// The rows of every tensor that belong in a shard.
std::vector<StateField> fields_of_shard(const CheckpointReader& reader, std::int64_t shard, std::int64_t shards) {
  std::vector<StateField> fields;
  for (const CheckpointReader::Entry& entry : reader.entries()) {
    const std::int64_t cuts = std::clamp<std::int64_t>(entry.shape[0], 1, shards);
    if (shard >= cuts) continue;
    const std::int64_t each = entry.shape[0] / cuts, longer = entry.shape[0] % cuts;  // the first ones have a row more
    StateField field;
    field.path = entry.path;
    field.dtype = entry.dtype;
    field.shape = entry.shape;
    field.version = entry.version;
    field.row_begin = shard * each + std::min(shard, longer);
    field.row_end = field.row_begin + each + (shard < longer ? 1 : 0);
    if (field.bytes() == 0 && shard > 0) continue;  // a tensor without elements lies in the first
    fields.push_back(std::move(field));
  }
  return fields;
}

}  // namespace

Saved convert_checkpoint(const CheckpointReader& reader, const std::string& run_dir, int shards) {
  const std::string target = run_dir + "/checkpoints/" + step_folder(reader.run().step);
  if (fs::exists(fs::symlink_status(target)))
    fail(ExitCode::cannot_create, "{}: already exists, and nothing is overwritten", target);

  remove_leftovers(run_dir + "/checkpoints", "");
  const SaveFolders folders(run_dir, "", reader.run().step, 0, std::to_string(::getpid()), 0);
  write_companions(folders.temporary(), reader.companions());
  std::vector<std::byte> memory;
  const auto read = [&](const StateField& field, const UseBytes& use) {
    for_each_rows(field, [&](const StateField& rows) {
      memory.resize(rows.bytes());
      reader.read(rows, memory.data());
      use(memory.data(), memory.size());
    });
  };
  std::vector<ShardPart> parts;
  for (int shard = 0; shard < shards; ++shard)
    parts.push_back(save_shard(folders, shard, fields_of_shard(reader, shard, shards), reader.run(), {}, read));
  Manifest manifest;
  manifest.run = reader.run();
  manifest.ranks = manifest.dp = shards;
  merge_parts(parts, manifest);
  return finish_checkpoint(run_dir, folders.temporary(), std::move(manifest));
}

}  // namespace sestina

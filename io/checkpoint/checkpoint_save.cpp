#include "io/checkpoint/checkpoint_save.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>

#include "core/memory/state_field.hpp"
#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_list.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/store/digest.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace {

namespace fs = std::filesystem;

void make_folders(const std::string& path) {
  const std::error_code error = retried_code(path, [&] {
    std::error_code code;
    fs::create_directories(path, code);
    return code;
  });
  if (error) fail(ExitCode::io_error, "{}: cannot be created: {}", path, error.message());
}

std::uint64_t next_serial(const std::string& run_dir) {
  std::uint64_t serial = 0;
  for (const ListedCheckpoint& listed : list_with_serials(run_dir)) serial = std::max(serial, listed.serial);
  return serial + 1;
}

}  // namespace

std::string staging_name(const std::string& run_dir) {
  const std::string path = fs::weakly_canonical(run_dir).string();
  return "sestina-" + hex64(digest64(path.data(), path.size())) + "-";
}

SaveFolders::SaveFolders(const std::string& run_dir, const std::string& staging_dir, std::int64_t step,
                         std::uint64_t save, const std::string& token, int rank)
    : temporary_(fmt::format("{}/checkpoints/{}.{}.tmp-{}", run_dir, step_folder(step), save, token)),
      gone_(fmt::format("{}/checkpoints/gone-{}.{}.tmp-{}", run_dir, step_folder(step), save, token)),
      notes_(fmt::format("{}/checkpoints/{}.{}.staged.tmp-{}", run_dir, step_folder(step), save, token)),
      shared_(rank != 0) {
  if (!staging_dir.empty())
    staging_ = fmt::format("{}/{}{}-{}.{}.tmp-{}", staging_dir, staging_name(run_dir), rank, step_folder(step), save,
                           ::getpid());
  make_folders(temporary_);
  descriptor_ = ::open(temporary_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
}

SaveFolders::~SaveFolders() {
  if (descriptor_ >= 0) ::close(descriptor_);
  try {
    remove();
  } catch (const std::bad_alloc&) {  // the next start removes the folders
  }
}

void SaveFolders::remove() const {
  std::error_code error;
  if (!shared_) {  // for the other ranks it goes at once, then it is removed piece by piece
    const bool gone = std::rename(temporary_.c_str(), gone_.c_str()) == 0;
    fs::remove_all(gone ? gone_ : temporary_, error);
    fs::remove_all(notes_, error);
  }
  if (!staging_.empty()) fs::remove_all(staging_, error);
}

bool SaveFolders::are_given_up() const {
  struct stat now {
  }, mine{};
  if (::stat(temporary_.c_str(), &now) != 0) return errno == ENOENT;
  if (descriptor_ < 0) return true;  // the folder went before it could be opened
  return ::fstat(descriptor_, &mine) == 0 && (now.st_ino != mine.st_ino || now.st_dev != mine.st_dev);
}

ShardPart save_shard(const SaveFolders& folders, int number, const std::vector<StateField>& fields, const RunState& run,
                     const Staged& staged, const FieldData& data, const CopyOptions& copy) {
  ShardPart part;
  part.file.name = shard_name(number);
  const std::string path = folders.temporary() + "/" + part.file.name;
  const std::string first = folders.staging().empty() ? path : folders.staging() + "/" + part.file.name;
  if (first != path) make_folders(folders.staging());
  part.tensors = write_shard(first, 0, fields, run, data);
  const FileDigest digest = digest_file(first);
  part.file.size = digest.size;
  part.file.xxh3_128 = digest.xxh3_128;
  sync_path(first);
  if (first == path) return part;
  if (staged) staged(part, first);
  drain_file(first, path, part.file, copy);
  return part;
}

Saved finish_checkpoint(const std::string& run_dir, const std::string& temporary, Manifest manifest) {
  const std::string parent = run_dir + "/checkpoints", name = step_folder(manifest.run.step);
  const std::string global = temporary + "/global.h5";
  manifest.serial = next_serial(run_dir);
  write_global(global, manifest);
  const FileDigest digest = digest_file(global);
  sync_path(global);
  manifest.files.push_back({"global.h5", digest.size, digest.xxh3_128});
  manifest.companions = list_companions(temporary);
  check_sizes(temporary, manifest);  // nothing else is there, and nothing has gone

  Saved saved{parent + "/" + name, bytes_of(manifest)};
  write_durably(temporary + "/manifest.json", manifest_text(manifest));
  publish_folder(temporary, saved.path);
  try {
    point_latest(parent, name);
  } catch (const Error& error) {  // a quota may be reached exactly here; the checkpoint is whole, and -r auto finds it
    spdlog::warn("{} is complete, but {}/latest does not point to it: {}", saved.path, parent, error.what());
  }
  return saved;
}

namespace {

// Returns the rows of every tensor that belong in a shard.
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
    if (field.bytes() == 0 && shard > 0) continue;  // a tensor without elements lies in the first shard
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

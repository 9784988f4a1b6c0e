#include "io/checkpoint/checkpoint_save.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <new>

#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_list.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/store/digest.hpp"
#include "io/store/retry.hpp"
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
  } catch (const std::bad_alloc&) {  // the next start removes them
  }
}

void SaveFolders::remove() const {
  std::error_code error;
  if (!shared_) {  // at once for the other ranks, then piece by piece
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
  if (descriptor_ < 0) return true;  // it went before it could be opened
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
  point_latest(parent, name);
  return saved;
}

}  // namespace sestina

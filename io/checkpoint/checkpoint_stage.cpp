#include "io/checkpoint/checkpoint_stage.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_verify.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/host_name.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStageSchema = "sestina-staged-shard";
constexpr std::string_view kStaged = ".staged.tmp-";

std::string note_path(const std::string& folder, int rank) { return fmt::format("{}/rank_{:05}.json", folder, rank); }

StageNote load_note(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::bad_data, "{}: cannot be opened", path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_stage_note(text, path);
}

// Returns the notes of all ranks; none when the save had not come so far, or when a note cannot be read.
std::vector<StageNote> load_notes(const std::string& folder) {
  std::vector<StageNote> notes;
  std::int64_t ranks = 1;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      notes.push_back(load_note(note_path(folder, rank)));
      if (rank == 0) ranks = notes[0].of.ranks;
    }
  } catch (const Error&) {
    notes.clear();
  }
  return notes;
}

// Returns the folder that its shards go to.
std::string temporary_of(std::string notes) { return notes.erase(notes.rfind(kStaged), kStaged.find(".tmp-")); }

bool is_whole(const std::string& path, const ManifestFile& file) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) == file.size &&
         digest_file(path).xxh3_128 == file.xxh3_128;
}

// True when it is published already: a kill may have come after the rename.
bool is_published(const std::string& path, const std::vector<StageNote>& notes) {
  try {
    const Manifest manifest = load_manifest(path);
    check_sizes(path, manifest);
    return std::all_of(notes.begin(), notes.end(), [&](const StageNote& note) {
      const ManifestFile& mine = note.part.file;
      return std::any_of(manifest.files.begin(), manifest.files.end(), [&](const ManifestFile& file) {
        return file.name == mine.name && file.size == mine.size && file.xxh3_128 == mine.xxh3_128;
      });
    });
  } catch (const Error&) {
    return false;
  }
}

void remove_all_but(const std::string& folder, const std::set<std::string>& names) {
  std::error_code error;
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (!names.contains(entry.path().filename().string())) others.push_back(entry.path());
  for (const fs::path& path : others) fs::remove_all(path, error);
}

Saved publish(const std::string& run_dir, const std::string& temporary, const std::vector<StageNote>& notes) {
  std::vector<ShardPart> parts;
  std::set<std::string> names;
  for (const StageNote& note : notes) {
    parts.push_back(note.part);
    names.insert(note.part.file.name);
  }
  std::set<std::string> kept = names;
  kept.insert(kCompanionFolder);  // companions were durable before the first note
  remove_all_but(temporary, kept);
  for (const std::string& name : names) sync_path(temporary + "/" + name);  // a kill may have come before its fsync
  Manifest manifest = notes[0].of;
  merge_parts(parts, manifest);
  return finish_checkpoint(run_dir, temporary, std::move(manifest));
}

}  // namespace

void write_stage_note(const std::string& folder, const StageNote& note) {
  const std::vector<ManifestFile> files = {note.part.file};
  write_output_file(note_path(folder, note.rank), sealed_text({{"schema", kStageSchema},
                                                               {"version", kManifestVersion},
                                                               {"rank", note.rank},
                                                               {"host", host_name()},
                                                               {"path", fs::absolute(note.path).string()},
                                                               {"step", note.of.run.step},
                                                               {"layout", layout_json(note.of)},
                                                               {"run", run_json(note.of.run)},
                                                               {"files", files_json(files)},
                                                               {"tensors", tensors_json(note.part.tensors, files)}}));
}

StageNote parse_stage_note(std::string_view text, const std::string& where) {
  const nlohmann::json object = parse_sealed(text, where);
  Members members(object, where);
  if (members.text("schema") != kStageSchema || members.count("version") != kManifestVersion)
    fail(ExitCode::bad_data, "{}: is not the note of a staged shard of version {}", where, kManifestVersion);
  StageNote note;
  note.rank = static_cast<int>(members.count("rank", std::numeric_limits<int>::max()));
  note.host = members.text("host");
  note.path = members.text("path");
  const std::int64_t step = members.count("step");
  read_layout(members.get("layout"), note.of, where + ": layout");
  note.of.run = read_run(members.get("run"), step, where + ": run");
  const std::vector<ManifestFile> files = read_files(members.list("files"), where);
  note.part.tensors = read_tensors(members.list("tensors"), files, where);
  members.finish();
  if (files.size() != 1 || files[0].name != shard_name(note.rank))
    fail(ExitCode::bad_data, "{}: lists {} files; expected {}", where, files.size(), shard_name(note.rank));
  note.part.file = files[0];
  return note;
}

void drain_file(const std::string& from, const std::string& to, const ManifestFile& expected,
                const CopyOptions& options) {
  const FileDigest copied = copy_whole_file(from, to, options);
  if (copied.size != expected.size || copied.xxh3_128 != expected.xxh3_128)
    fail(ExitCode::io_error, "{}: what was read is not what was staged: {} bytes with digest {}; expected {} with {}",
         from, copied.size, copied.xxh3_128, expected.size, expected.xxh3_128);
  sync_path(to);
}

std::vector<std::string> staged_leftovers(const std::string& run_dir) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir + "/checkpoints", error)) {
    const std::string path = entry.path().string();
    if (path.find(kStaged) == std::string::npos || !is_leftover(entry.path().filename().string())) continue;
    if (!load_notes(path).empty()) found.emplace_back(fs::last_write_time(entry.path(), error), path);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [time, path] : found) paths.push_back(std::move(path));
  return paths;
}

// A shard is copied by one rank of a node: the one that holds the lock on it.
void drain_leftover(const std::string& notes, const CopyOptions& options) {
  const std::string temporary = temporary_of(notes);
  for (const StageNote& note : load_notes(notes)) {
    const std::string target = temporary + "/" + note.part.file.name;
    const int file = ::open(note.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) continue;
    try {
      if (::flock(file, LOCK_EX | LOCK_NB) == 0 && is_whole(note.path, note.part.file) &&
          !is_whole(target, note.part.file)) {
        std::error_code ignored;
        fs::create_directories(temporary, ignored);
        fs::remove(target, ignored);
        drain_file(note.path, target, note.part.file, options);
      }
    } catch (...) {
      ::close(file);
      throw;
    }
    ::close(file);
  }
}

std::optional<Saved> finish_leftover(const std::string& run_dir, const std::string& notes, std::string& problem) {
  const std::vector<StageNote> all = load_notes(notes);
  const std::string temporary = temporary_of(notes);
  if (all.empty()) return std::nullopt;
  const std::string parent = run_dir + "/checkpoints", name = step_folder(all[0].of.run.step);
  const bool published = is_published(parent + "/" + name, all);
  if (!published)
    for (const StageNote& note : all)
      if (problem.empty() && !is_whole(temporary + "/" + note.part.file.name, note.part.file))
        problem = fmt::format(
            "step {} was saved on staging disks alone when its run was killed, and is given up: "
            "{} on {} is not there or damaged",
            note.of.run.step, note.path, note.host);
  if (!problem.empty()) return std::nullopt;
  if (published) point_latest(parent, name);
  const Saved saved = published ? Saved{parent + "/" + name, 0} : publish(run_dir, temporary, all);
  std::error_code ignored;
  fs::remove_all(notes, ignored);
  for (const StageNote& note : all) {
    const fs::path stage = fs::path(note.path).parent_path();
    if (stage.filename().string().starts_with(staging_name(run_dir))) fs::remove_all(stage, ignored);
  }
  return saved;
}

}  // namespace sestina

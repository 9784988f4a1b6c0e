#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "io/checkpoint.hpp"
#include "io/checkpoint_files.hpp"
#include "io/checkpoint_list.hpp"
#include "io/checkpoint_shard.hpp"
#include "io/quiet_threads.hpp"
#include "kernels/error.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

void make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(ExitCode::io_error, "{}: cannot be created: {}", path, error.message());
}

std::uint64_t next_serial(const std::string& run_dir) {
  std::uint64_t serial = 0;
  for (const ListedCheckpoint& listed : list_with_serials(run_dir)) serial = std::max(serial, listed.serial);
  return serial + 1;
}

// Keeps the `keep` newest complete checkpoints; what is older goes. A delete that fails costs disk, not the run.
void prune(const std::string& run_dir, int keep) {
  if (keep <= 0) return;
  int complete = 0;
  for (const ListedCheckpoint& listed : list_with_serials(run_dir)) {
    if (complete < keep) {
      complete += listed.info.problem.empty() ? 1 : 0;
      continue;
    }
    try {
      delete_checkpoint(listed.info.path);
    } catch (const Error& error) {
      spdlog::warn("{}", error.what());
    }
  }
}

// Staging folders of this run begin so; other runs may share the disk.
std::string staging_name(const std::string& run_dir) {
  const std::string path = fs::weakly_canonical(run_dir).string();
  return "sestina-" + hex64(digest64(path.data(), path.size())) + "-";
}

// Temporary folders of one save; what is left of them is removed on every way out.
struct Folders {
  std::string temporary, staging;  // staging empty: none
  Folders(const std::string& parent, const std::string& staging_prefix, std::int64_t step) {
    const std::string name = fmt::format("{}.tmp-{}", step_folder(step), ::getpid());
    temporary = parent + "/" + name;
    if (!staging_prefix.empty()) staging = staging_prefix + name;
    remove();
    make_folders(temporary);
    if (!staging.empty()) make_folders(staging);
  }
  ~Folders() { remove(); }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;
  void remove() const {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    if (!staging.empty()) fs::remove_all(staging, ignored);
  }
};

struct Saved {
  std::string path;
  std::uint64_t bytes = 0;
};

// The whole order of writing. `staged` is called when the snapshot is on the staging disk and no longer needed.
Saved save_checkpoint(const std::string& run_dir, const CheckpointOptions& options, const Snapshot& snapshot,
                      const std::function<void()>& staged) {
  const std::string parent = run_dir + "/checkpoints", name = step_folder(snapshot.run.step);
  make_folders(parent);
  const std::string& disk = options.staging_dir;
  const Folders folders(parent, disk.empty() ? "" : disk + "/" + staging_name(run_dir), snapshot.run.step);
  const std::string& first = folders.staging.empty() ? folders.temporary : folders.staging;

  Manifest manifest;
  manifest.run = snapshot.run;
  manifest.serial = next_serial(run_dir);
  manifest.files = {{"shard_00000.h5", 0, ""}, {"global.h5", 0, ""}};
  manifest.tensors = write_shard(first + "/" + manifest.files[0].name, 0, snapshot.fields, snapshot.run);
  write_global(first + "/" + manifest.files[1].name, manifest);
  if (!folders.staging.empty()) staged();

  Saved saved{parent + "/" + name, 0};
  for (ManifestFile& file : manifest.files) {
    const std::string path = folders.temporary + "/" + file.name;
    const FileDigest digest =
        folders.staging.empty() ? digest_file(path) : copy_file_digest(folders.staging + "/" + file.name, path);
    sync_path(path);
    file.size = digest.size;
    file.xxh3_128 = digest.xxh3_128;
    saved.bytes += file.size;
  }
  write_durably(folders.temporary + "/manifest.json", manifest_text(manifest));
  publish_folder(folders.temporary, saved.path);
  point_latest(parent, name);
  return saved;
}

}  // namespace

struct CheckpointWriter::State {
  std::string run_dir;
  CheckpointOptions options;
  Snapshot snapshot;
  std::thread thread;
  mutable std::mutex lock;  // guards all below
  std::condition_variable changed;
  bool busy = false, snapshot_free = true, quit = false;
  std::vector<Event> events;
  int failures = 0;
  double longest = 0;

  void loop() {
    std::unique_lock guard(lock);
    while (true) {
      changed.wait(guard, [&] { return busy || quit; });
      if (!busy) return;
      guard.unlock();
      Event event = save();
      guard.lock();
      failures = event.error.empty() ? 0 : failures + 1;
      if (event.error.empty()) longest = std::max(longest, event.seconds);
      events.push_back(std::move(event));
      busy = false;
      snapshot_free = true;
      changed.notify_all();
    }
  }

  Event save() {
    const auto begin = std::chrono::steady_clock::now();
    Event event{snapshot.run.step, "", "", 0, 0};
    try {
      const Saved saved = save_checkpoint(run_dir, options, snapshot, [this] {
        const std::lock_guard guard(lock);
        snapshot_free = true;
        changed.notify_all();
      });
      event.path = saved.path;
      event.bytes = saved.bytes;
      prune(run_dir, options.keep);
    } catch (const std::exception& error) {
      event.error = error.what();
    }
    event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return event;
  }
};

CheckpointWriter::CheckpointWriter(const std::string& run_dir, const CheckpointOptions& options)
    : state_(std::make_unique<State>()) {
  state_->run_dir = run_dir;
  state_->options = options;
  remove_leftovers(run_dir + "/checkpoints", "");
  if (!options.staging_dir.empty()) remove_leftovers(options.staging_dir, staging_name(run_dir));
  // Quiet: signals belong to the main thread, and beyond a file-size limit a write gives an errno instead of a signal.
  state_->thread = quiet_thread([state = state_.get()] { state->loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  {
    const std::lock_guard guard(state_->lock);
    state_->quit = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

Snapshot& CheckpointWriter::slot() {
  wait();
  return state_->snapshot;
}

void CheckpointWriter::save() {
  std::unique_lock guard(state_->lock);
  SESTINA_REQUIRE(!state_->busy, "save() without slot()");
  state_->busy = true;
  state_->snapshot_free = false;
  state_->changed.notify_all();
  if (!state_->options.async) state_->changed.wait(guard, [&] { return state_->snapshot_free; });
}

void CheckpointWriter::wait() {
  std::unique_lock guard(state_->lock);
  state_->changed.wait(guard, [&] { return !state_->busy; });
}

std::vector<CheckpointWriter::Event> CheckpointWriter::take_events() {
  const std::lock_guard guard(state_->lock);
  return std::exchange(state_->events, {});
}

int CheckpointWriter::failures_in_a_row() const {
  const std::lock_guard guard(state_->lock);
  return state_->failures;
}

double CheckpointWriter::longest_save_seconds() const {
  const std::lock_guard guard(state_->lock);
  return state_->longest;
}

}  // namespace sestina

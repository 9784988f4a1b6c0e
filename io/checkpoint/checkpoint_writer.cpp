#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "core/memory/pager.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_companions.hpp"
#include "io/checkpoint/checkpoint_files.hpp"
#include "io/checkpoint/checkpoint_list.hpp"
#include "io/checkpoint/checkpoint_save.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/store/finite.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

namespace {

// Copies a field that lies in host memory, and checks the values while they are in the cache; returns the index of the
// first that is not finite.
std::optional<std::size_t> copy_and_check(const StateField& field, std::byte* to) {
  constexpr std::size_t piece = std::size_t{1} << 18;
  const std::size_t bytes = field.bytes();
  const PinAll pin(field.pager, field.data, field.bytes(), Pager::Need::reading);
  std::optional<std::size_t> found;
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t count = std::min(piece, bytes - at);
    std::memcpy(to + at, static_cast<const std::byte*>(field.data) + at, count);
    if (found) continue;
    if (const auto index = first_nonfinite(field.dtype, to + at, count)) found = at / size_of(field.dtype) + *index;
  }
  return found;
}

// Copies a field; returns a text on its first value that is not finite, "" none.
std::string copy_field(const StateField& field, const CopyFromDevice& copy_from_device, std::byte* to) {
  std::optional<std::size_t> bad;
  if (field.on_device) {
    SESTINA_REQUIRE(copy_from_device, "{} lies on the device and cannot be copied", field.path);
    copy_from_device(field, to);
    bad = first_nonfinite(field.dtype, to, field.bytes());
  } else {
    bad = copy_and_check(field, to);
  }
  places_to_whole(field, to);
  return bad ? nonfinite_text(field, to + *bad * size_of(field.dtype), *bad) : "";
}

bool is_beyond_memory(const StateField& field) {
  return field.pager != nullptr && field.pager->is_beyond_memory(field.data);
}

}  // namespace

void take_snapshot(const std::vector<StateField>& fields, const RunState& run, const CopyFromDevice& copy_from_device,
                   Snapshot& snapshot, bool copies) {
  constexpr std::size_t kAlign = 64;
  const auto room = [](const StateField& field) { return (field.bytes() + kAlign - 1) / kAlign * kAlign; };
  const auto streams = [copies](const StateField& field) { return !copies || is_beyond_memory(field); };
  std::size_t total = 0;
  for (const StateField& field : fields)
    if (field.saved && !streams(field)) total += room(field);
  if (snapshot.storage.size() < total) snapshot.storage = std::vector<std::byte>(total);
  snapshot.fields.clear();
  snapshot.streamed.clear();
  snapshot.digests.clear();
  snapshot.run = run;
  snapshot.problem.clear();
  std::byte* to = snapshot.storage.data();
  for (const StateField& from : fields) {
    if (!from.saved) continue;
    StateField& field = snapshot.fields.emplace_back(from);
    if (streams(from)) {
      snapshot.streamed.push_back(from);
      field.data = nullptr;
    } else {
      const std::string problem = copy_field(from, copy_from_device, to);
      if (snapshot.problem.empty()) snapshot.problem = problem;
      snapshot.digests[from.path] = hex64(digest64(to, from.bytes()));
      field.data = to;
      to += room(from);
    }
    field.pager = nullptr;
    field.of_places = false;
    field.on_device = false;
  }
}

namespace {

namespace fs = std::filesystem;

}  // namespace

struct CheckpointWriter::State {
  std::string run_dir;
  CheckpointOptions options;
  WriterGroup group;
  Snapshot snapshot;
  std::vector<CompanionFile> companions;
  FieldStream stream;             // streams fields that the snapshot has no copy of
  Retention retention;            // used on the first rank
  std::uint64_t saves = 0;        // saves begun so far: the same number on all ranks
  std::vector<std::string> late;  // folders in which ranks may have written after a failed save
  std::thread thread;
  mutable std::mutex lock;  // guards all below
  std::condition_variable changed;
  bool busy = false, snapshot_free = true, quit = false;
  std::vector<Event> events;
  int failures = 0;
  bool for_memory = false;  // the last failure was for lack of memory
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
      if (group.rank == 0 || !event.error.empty()) events.push_back(std::move(event));
      busy = false;
      snapshot_free = true;
      changed.notify_all();
    }
  }

  // Called when the shard is on the staging disk; notes so in the run directory. Training may then overwrite the
  // snapshot, and a kill loses nothing once all ranks have come so far.
  void staged(const SaveFolders& folders, const ShardPart& part, const std::string& path) {
    StageNote note{group.rank, path, part, manifest()};
    write_stage_note(folders.notes(), note);
    const std::lock_guard guard(lock);
    snapshot_free = true;
    changed.notify_all();
  }

  // Returns the manifest without files and tensors.
  Manifest manifest() const {
    Manifest manifest;
    manifest.run = snapshot.run;
    manifest.ranks = group.ranks;
    manifest.dp = group.dp;
    manifest.tp = group.tp;
    manifest.pp = group.pp;
    return manifest;
  }

  Event save() {
    const auto begin = std::chrono::steady_clock::now();
    Event event{snapshot.run.step, "", "", 0, 0};
    ++saves;
    try {
      if (group.rank == 0)
        save_whole(event);
      else
        save_part(event);
    } catch (const std::exception& error) {
      note_failure(error, event);
    }
    stream.end();
    event.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return event;
  }

  void note_failure(const std::exception& error, Event& event) {
    const Failure failure = failure_of(error);
    event.error = failure.message;
    const std::lock_guard guard(lock);
    for_memory = failure.code == ExitCode::unavailable;
  }

  void save_whole(Event& event) {
    remove_late_parts();
    const SaveFolders folders(run_dir, options.staging_dir, snapshot.run.step, saves, group.token, 0);
    late = folders.places_of_late_parts();
    write_companions(folders.temporary(), companions);
    std::vector<ShardPart> parts = {save_own(folders)};
    for (ShardPart& part : collect_parts(folders.temporary(), group.ranks, group.timeout))
      parts.push_back(std::move(part));
    Manifest whole = manifest();
    merge_parts(parts, whole);
    const Saved saved = finish_checkpoint(run_dir, folders.temporary(), std::move(whole));
    late.clear();
    event.path = saved.path;
    event.bytes = saved.bytes;
    retention.saved(saved.path);
    retention.prune(run_dir, options.keep, options.keep_every);
  }

  // Errors here are told to the first rank too, if they can be. When that rank has given up already, it has said why,
  // and the folder has gone: that is no error of this rank.
  void save_part(Event& event) {
    const SaveFolders folders(run_dir, options.staging_dir, snapshot.run.step, saves, group.token, group.rank);
    ShardPart part;
    const auto report = [&](const std::exception& error) {
      part = {};
      part.error = failure_of(error).message;
      if (event.error.empty() && !folders.are_given_up()) note_failure(error, event);
    };
    try {
      part = save_own(folders);
      event.bytes = part.file.size;
    } catch (const std::exception& error) {
      report(error);
    }
    try {
      publish_part(folders.temporary(), group.rank, part);
    } catch (const std::exception& error) {
      report(error);
    }
  }

  // The system refuses copies from the stage in the same way at every save, so the log is told only once.
  ShardPart save_own(const SaveFolders& folders) {
    CopyOptions copy;
    if (saves == 1) copy.notice = [](const std::string& message) { spdlog::warn("{}", message); };
    ShardPart part = save_shard(
        folders, group.rank, snapshot.fields, snapshot.run,
        [&](const ShardPart& staged_part, const std::string& path) {
          require_copies(staged_part);
          staged(folders, staged_part, path);
        },
        [this](const StateField& field, const UseBytes& use) { stream.take(field, use); }, copy);
    if (options.staging_dir.empty()) require_copies(part);  // else training may overwrite the copies by now
    return part;
  }

  // Fails where what was written is not what was copied: memory has changed in between.
  void require_copies(const ShardPart& part) const {
    for (const ManifestTensor& tensor : part.tensors) {
      const auto copied = snapshot.digests.find(tensor.path);
      if (copied != snapshot.digests.end() && copied->second != tensor.pieces[0].xxh3_64)
        fail(ExitCode::io_error, "{}: its copy in memory changed before it was written: digest {}, now {}", tensor.path,
             copied->second, tensor.pieces[0].xxh3_64);
    }
  }

  // Removes what ranks wrote after this one had given up.
  void remove_late_parts() {
    std::error_code ignored;
    for (const std::string& folder : std::exchange(late, {})) fs::remove_all(folder, ignored);
  }
};

CheckpointWriter::CheckpointWriter(const std::string& run_dir, const CheckpointOptions& options,
                                   const WriterGroup& group)
    : state_(std::make_unique<State>()) {
  SESTINA_REQUIRE(0 <= group.rank && group.rank < group.ranks && group.dp * group.tp * group.pp == group.ranks,
                  "rank {} of {} = {} x {} x {}", group.rank, group.ranks, group.dp, group.tp, group.pp);
  SESTINA_REQUIRE(group.ranks == 1 || !group.token.empty(), "{} ranks without a common token", group.ranks);
  state_->run_dir = run_dir;
  state_->options = options;
  state_->group = group;
  if (group.token.empty()) state_->group.token = std::to_string(::getpid());
  if (group.rank == 0) remove_leftovers(run_dir + "/checkpoints", "");
  if (!options.staging_dir.empty()) remove_leftovers(options.staging_dir, staging_name(run_dir));
  // The thread is quiet: signals belong to the main thread, and a write beyond a file-size limit gives an errno, no
  // signal.
  state_->thread = quiet_thread([state = state_.get()] { state->loop(); });
}

CheckpointWriter::~CheckpointWriter() {
  state_->stream.give_up();
  {
    const std::lock_guard guard(state_->lock);
    state_->quit = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
  state_->remove_late_parts();
}

void CheckpointWriter::resumed_from(const std::string& checkpoint) { state_->retention.resumed_from(checkpoint); }

void CheckpointWriter::carry(std::vector<CompanionFile> files) {
  wait();
  state_->companions = std::move(files);
}

Snapshot& CheckpointWriter::slot() {
  wait();
  return state_->snapshot;
}

void CheckpointWriter::start() {
  const std::lock_guard guard(state_->lock);
  SESTINA_REQUIRE(!state_->busy, "save without slot()");
  state_->stream.begin(state_->snapshot.streamed);
  state_->busy = true;
  state_->snapshot_free = false;
  state_->changed.notify_all();
}

bool CheckpointWriter::advance(const CopyFromDevice& copy_from_device) {
  if (state_->stream.feed(copy_from_device)) return true;
  if (state_->options.async) return false;
  std::unique_lock guard(state_->lock);
  return !state_->changed.wait_for(guard, std::chrono::seconds(1), [&] { return state_->snapshot_free; });
}

const std::string& CheckpointWriter::streamed_problem() const { return state_->stream.problem(); }

void CheckpointWriter::save(const CopyFromDevice& copy_from_device) {
  start();
  while (advance(copy_from_device)) continue;
}

bool CheckpointWriter::busy() const {
  const std::lock_guard guard(state_->lock);
  return state_->busy;
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

bool CheckpointWriter::failed_for_memory() const {
  const std::lock_guard guard(state_->lock);
  return state_->for_memory;
}

bool CheckpointWriter::outcome_known_here() const { return state_->group.rank == 0; }

double CheckpointWriter::longest_save_seconds() const {
  const std::lock_guard guard(state_->lock);
  return state_->longest;
}

}  // namespace sestina

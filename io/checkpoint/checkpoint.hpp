// Checkpoints: one serial HDF5 file per rank, global.h5 with virtual datasets, manifest.json last; nothing is used that
// its digest does not cover. Order of writing and deleting: inputs/README.md, "Checkpoints". No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/memory/state_field.hpp"
#include "io/checkpoint/field_stream.hpp"
#include "io/hf/hf_companions.hpp"
#include "io/store/digest.hpp"

namespace sestina {

// The state of a run that a checkpoint holds in addition to tensors.
struct RunState {
  std::int64_t step = 0;                 // completed updates
  std::uint64_t sample = 0, tokens = 0;  // sample: data cursor; tokens: tokens seen
  std::uint64_t seed = 0;
  std::string deck;              // resolved deck, TOML
  std::string tokenizer_digest;  // xxh3-128 of tokenizer.json, "" none
  std::string instruction_set;   // the processor's; equal bits need the same one
  double loss = 0;               // last train loss
  std::string extra;             // JSON object of further counters, "" none
};

// The state of a step boundary. Fields that it holds a copy of are written while training goes on; training waits for
// the others (CheckpointWriter::advance).
struct Snapshot {
  RunState run;
  std::vector<StateField> fields;    // all fields to save: data points into `storage`, null where not copied
  std::vector<StateField> streamed;  // those not copied, in the same order, as they are
  std::vector<std::byte> storage;
  std::map<std::string, std::string> digests;  // of the copies, by path: a copy that has another one is not saved
  std::string problem;  // names the first value that is not finite, "" none; such a snapshot is not to be saved
};
// Copies those of the fields that lie in memory (device memory through `copy_from_device`), reusing the snapshot's
// storage; copies none where `copies` is false. State on a disk may be more than memory holds: it is streamed.
void take_snapshot(const std::vector<StateField>&, const RunState&, const CopyFromDevice& copy_from_device, Snapshot&,
                   bool copies = true);

struct CheckpointInfo {
  std::string path;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  std::string problem;
};  // problem "" = complete

// The ranks that write one checkpoint together. They share the run directory and send no messages: the first rank waits
// for the shards of the others to appear. Every rank makes the same saves in the same order.
struct WriterGroup {
  int rank = 0, ranks = 1;
  std::string token;           // process number of the first rank, the same on all; may be empty for one rank
  double timeout = 60;         // seconds that the first rank waits for the others after its own shard
  int dp = 1, tp = 1, pp = 1;  // the grid of the ranks, for the manifest
};

// Writes checkpoints on its own I/O thread when async (signals blocked; HDF5 is called there only). A field with no
// rows here is left to the other ranks; together the ranks must hold every element of a tensor once.
class CheckpointWriter {
 public:
  CheckpointWriter(const std::string& run_dir, const CheckpointOptions&, const WriterGroup& = {});
  ~CheckpointWriter();  // waits for a save under way
  // Says that the run goes on from this checkpoint, which was verified: retention takes it for the newest one before
  // those saved here.
  void resumed_from(const std::string& checkpoint);
  void carry(std::vector<CompanionFile>);  // writes them into every later checkpoint; called on the first rank alone
  Snapshot& slot();                        // waits until the previous save has ended; the caller fills it
  void start();                            // starts the save of the slot, after which old checkpoints are removed
  // Call this after start() until it returns false: then the state may change, since fields that are not copied have
  // been read, and a save without checkpoint.async is durable. Each call takes about a second at most. It throws what
  // reading a field throws.
  bool advance(const CopyFromDevice& copy_from_device = {});
  // Names the first value that is not finite among those that advance() read; the save then fails.
  const std::string& streamed_problem() const;
  void save(const CopyFromDevice& copy_from_device = {});  // start() and all calls of advance()
  bool busy() const;                                       // this rank's part of a save is under way
  void wait();  // waits until this rank's part of the save under way is durable; rethrows nothing
  // Only the first rank's events tell how a save ended, with an error that names the rank; the others tell their own
  // errors only.
  bool outcome_known_here() const;
  struct Event {
    std::int64_t step;
    std::string path, error;
    double seconds;
    std::uint64_t bytes;
  };                                 // error "" = saved
  std::vector<Event> take_events();  // finished saves since the last call
  int failures_in_a_row() const;     // after two the trainer stops
  bool failed_for_memory() const;    // the last failure was for lack of memory, else the disk was the cause
  double longest_save_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns all step_* folders of a run directory, newest first; incomplete ones carry their problem. Reads manifests
// only.
std::vector<CheckpointInfo> list_checkpoints(const std::string& run_dir);
// Checks size and digest of every file; with full also every dataset. Returns "" or the first problem (file, what).
// poll is called while files are read; what it throws ends the call.
std::string verify_checkpoint(const std::string& checkpoint, bool full, const Poll& poll = {});
// Does the same for the files with number i, i mod parts = part, so that several ranks share the work. With full and
// more than one part the datasets of global.h5 are not read, since they lead to files whose digest others check.
std::string verify_part(const std::string& checkpoint, int part, int parts, bool full, const Poll& poll = {});
// Returns the newest checkpoint that verifies, and with `finite` holds only finite values; `warn` gets a line for each
// newer one that does not. "" when there is none.
std::string newest_complete(const std::string& run_dir, bool full, const std::function<void(const std::string&)>& warn,
                            const Poll& poll = {}, bool finite = false);

// Returns a checkpoint folder as it is; for a run directory its newest complete one, Error(bad_data) when it has none.
std::string find_checkpoint(const std::string& path, const std::function<void(const std::string&)>& warn);

// Size and digest of a file are checked before HDF5 opens it. all: those of all files at once; opened: those of each
// file when it is first needed; full: those of all files, and every dataset is read too.
enum class Verify { all, opened, full };

class CheckpointReader {
 public:
  // Opens a checkpoint. Error(bad_data) names file and defect; with Verify::opened read() throws it too.
  CheckpointReader(const std::string& checkpoint, Verify, const Poll& poll = {});
  CheckpointReader(const std::string& checkpoint, bool full)
      : CheckpointReader(checkpoint, full ? Verify::full : Verify::all) {}
  ~CheckpointReader();
  const RunState& run() const;
  struct Entry {
    std::string path;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t version;
  };
  const std::vector<Entry>& entries() const;
  bool has(const std::string& path) const;
  std::vector<CompanionFile> companions() const;  // their digests are checked; Error(bad_data)
  // Reads the field's slab of its global tensor into host memory of field.dtype, from the shards that hold some of it;
  // shape and dtype must agree.
  void read(const StateField& field, void* host) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina

// The order in which a checkpoint is made: temporary folder, shards, global.h5, manifest, rename, link. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/hdf5_file.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/store/copy_file.hpp"

namespace sestina {

// Returns the begin of the names of a run's staging folders; other runs may share the disk.
std::string staging_name(const std::string& run_dir);

// The temporary folders of one save on one rank. The object removes what is left of them; only the first rank's removes
// the one in the run directory, which all ranks share.
class SaveFolders {
 public:
  // <run_dir>/checkpoints/<step>.<save>.tmp-<token>: `token` is the number of the process whose death makes it rubbish;
  // `save` tells the saves of that process apart, so that a part that comes too late meets no later save.
  SaveFolders(const std::string& run_dir, const std::string& staging_dir, std::int64_t step, std::uint64_t save,
              const std::string& token, int rank);
  ~SaveFolders();
  SaveFolders(const SaveFolders&) = delete;
  SaveFolders& operator=(const SaveFolders&) = delete;
  const std::string& temporary() const { return temporary_; }
  const std::string& staging() const { return staging_; }  // made when it is needed; "": none
  const std::string& notes() const { return notes_; }      // notes of what is staged (checkpoint_stage.hpp)
  // True when the first rank has removed or published the folder that this rank found or made (another one may have
  // come since).
  bool are_given_up() const;
  // Returns the folders in which a rank that is late may still put something after this object has gone.
  std::vector<std::string> places_of_late_parts() const { return {temporary_, gone_, notes_}; }

 private:
  void remove() const;
  std::string temporary_, gone_, staging_, notes_;  // gone_: the name of the temporary folder while it is removed
  bool shared_;
  int descriptor_ = -1;  // of the temporary folder, whose inode's number stays taken while it is open
};

// Called when a shard, whose description this is, is durable on the staging disk at `path`.
using Staged = std::function<void(const ShardPart&, const std::string& path)>;

// Writes shard `number`, on the staging disk first if there is one, until it is durable in the temporary folder.
// After `staged` the fields are no longer needed; without a staging disk it is not called, and nothing is copied.
ShardPart save_shard(const SaveFolders&, int number, const std::vector<StateField>&, const RunState&,
                     const Staged& staged = {}, const FieldData& data = {}, const CopyOptions& copy = {});

struct Saved {
  std::string path;
  std::uint64_t bytes = 0;
};
// Finishes a checkpoint whose shards are all in place and listed, as are its companions, if any: writes global.h5 and
// the manifest, which gets the next serial, publishes the folder and points `latest` at it.
Saved finish_checkpoint(const std::string& run_dir, const std::string& temporary, Manifest);

// A checkpoint can be rewritten with another number of shards.

// Writes all that is read as <run_dir>/checkpoints/<step> in so many shards, each tensor cut into even ranges of rows
// (one with fewer rows than shards lies in the first ones, row by row). One range of one tensor is in memory at a time.
// Error(cannot_create) if the step is already there.
Saved convert_checkpoint(const CheckpointReader&, const std::string& run_dir, int shards);

}  // namespace sestina

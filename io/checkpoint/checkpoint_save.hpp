// The order in which a checkpoint comes to be: temporary folder, shards, global.h5, manifest, rename, link. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/checkpoint_shard.hpp"
#include "io/checkpoint/manifest.hpp"

namespace sestina {

// Staging folders of a run begin so; other runs may share the disk.
std::string staging_name(const std::string& run_dir);

// The temporary folders of one save on one rank. What is left of them goes with the object; the one in the run
// directory, which all ranks share, only with the first rank's.
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
  const std::string& staging() const { return staging_; }  // "": none; made when it is needed
  // The first rank has removed or published the folder that this rank found or made (another one may have come since).
  bool are_given_up() const;
  // Where a rank that is late may still put something after this object has gone.
  std::vector<std::string> places_of_late_parts() const { return {temporary_, gone_name()}; }

 private:
  std::string gone_name() const;
  std::string temporary_, staging_;
  bool shared_;
  int descriptor_ = -1;  // of the temporary folder: while it is open its inode's number is not given out again
};

// Writes shard `number`, on the staging disk first if there is one, until it is durable in the temporary folder.
// `staged` is called when the fields are on a disk and no longer needed (when not before the end: not at all).
ShardPart save_shard(const SaveFolders&, int number, const std::vector<StateField>&, const RunState&,
                     const std::function<void()>& staged = {}, const FieldData& data = {});

struct Saved {
  std::string path;
  std::uint64_t bytes = 0;
};
// With all shards in place and listed: writes global.h5 and the manifest, which gets the next serial, publishes the
// folder and points `latest` at it.
Saved finish_checkpoint(const std::string& run_dir, const SaveFolders&, Manifest);

}  // namespace sestina

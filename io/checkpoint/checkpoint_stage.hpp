// Moves checkpoints that are whole on staging disks to the run directory. After its shard on the stage each rank leaves
// a note of it, durable, in <run_dir>/checkpoints/<step>.<save>.staged.tmp-<token>. With the notes of all ranks a kill
// loses nothing: the next start copies what is missing and publishes the checkpoint. No Kokkos.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint_part.hpp"
#include "io/checkpoint/checkpoint_save.hpp"

namespace sestina {

struct StageNote {
  int rank = 0;
  std::string path;  // the path of the shard on the stage
  ShardPart part;
  Manifest of;            // the run and its layout alone
  std::string host = {};  // the host of the path; set to this one when written
};

void write_stage_note(const std::string& folder, const StageNote&);
StageNote parse_stage_note(std::string_view text, const std::string& where);  // Error(bad_data)

// Copies a file by the store's way (io/store/copy_file.hpp) and makes it durable; Error(io_error) when it cannot be
// copied, or when what was read is not what `expected` says.
void drain_file(const std::string& from, const std::string& to, const ManifestFile& expected, const CopyOptions& = {});

// Returns the folders of notes that dead processes left and that have the notes of all ranks, oldest save first. Only
// the holder of the run directory's lock may call it.
std::vector<std::string> staged_leftovers(const std::string& run_dir);
// Copies shards that lie on disks of this node; every rank may call it, all at once. Error(io_error).
void drain_leftover(const std::string& notes, const CopyOptions& = {});
// Called after that by one rank: publishes the checkpoint and removes what it came from. Returns nothing when shards
// are missing or damaged, and `problem` says which. Error(io_error).
std::optional<Saved> finish_leftover(const std::string& run_dir, const std::string& notes, std::string& problem);

}  // namespace sestina

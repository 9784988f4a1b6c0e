// The file-system side of checkpoints: durable writes, publishing a finished folder, deleting one. Each is ordered so
// that a kill at any moment leaves either a complete checkpoint or none. Error(io_error) with the system's reason. No
// Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sestina {

struct FilePart {
  const void* data;
  std::uint64_t offset, bytes;
};

void sync_path(const std::string& path);                                  // calls fsync on a file or folder
void write_durably(const std::string& path, const std::string& text);     // writes a new file and syncs it
void write_parts(const std::string& path, const std::vector<FilePart>&);  // writes into an existing file
// Asks the file system for room, where it can be asked, so that a full disk is found before anything is written.
void reserve_room(const std::string& path, std::uint64_t bytes);

std::string step_folder(std::int64_t step);            // "step_00001000"
std::int64_t step_of_folder(const std::string& name);  // -1: no checkpoint folder's name

// Puts the complete folder `temporary` in place as `final` (both in one folder), atomically replacing one that is
// there.
void publish_folder(const std::string& temporary, const std::string& final_path);
// Points <folder>/latest at `name` by rename.
void point_latest(const std::string& folder, const std::string& name);
// Deletes a checkpoint under a temporary name, so that remove_leftovers removes what a kill leaves. Does nothing where
// there is none.
void delete_checkpoint(const std::string& path);
// True for a name "...tmp-<pid>" of a process that is dead, or that had this one's number earlier.
bool is_leftover(const std::string& name);
// Removes what dead processes left in `folder`: "<prefix>*.tmp-<pid>".
void remove_leftovers(const std::string& folder, const std::string& prefix);

}  // namespace sestina

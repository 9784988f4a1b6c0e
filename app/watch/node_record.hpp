// Files in which a node remembers what was found out about it, one of each kind, between runs and for all of them. A
// file that is not there, cannot be read, or is none of ours, remembers nothing. No Kokkos.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sestina {

// Returns the file of this node for one kind ("speed"): in $XDG_CACHE_HOME or ~/.cache, "" where there is neither.
std::string record_file(const std::string& kind);

nlohmann::ordered_json read_record_file(const std::string& file);  // null where nothing is remembered
// Makes folders; returns false where the file cannot be written.
bool write_record_file(const std::string& file, const nlohmann::ordered_json&);

}  // namespace sestina

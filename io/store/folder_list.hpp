// The files below a folder. Links are followed, and each file counts once, whatever leads to it. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace sestina {

enum class Depth { this_folder, all_below };

// Regular files whose name is `wanted`, sorted by path. Folders and files after links belong to it; what was found
// without a link keeps that path, else it has the first of those that lead to it. Error(input_missing) for a folder
// that cannot be listed, and for a link that leads to nothing: what lies there is not left out in silence.
std::vector<std::string> list_folder(const std::string& folder, Depth,
                                     const std::function<bool(const std::string& name)>& wanted);

// Without the paths that lead to the file of an earlier one; what is not there stays.
std::vector<std::string> each_once(const std::vector<std::string>& paths);

}  // namespace sestina
